import os
import time
from pathlib import Path

import gguf
import pytest

from app.errors import FileError, MetadataError
from app.modelfile.limits import ReadLimits
from app.modelfile.reader import read_array, read_model_file
from app.modelfile.types import ArrayValue, ModelFile, ValueType
from app.modelfile.writer import MetadataValue, Typed
from tests.builders import F32, array, entry, hdr, info, materialise, raw_file, string, t0, tp, u32


def tensor_bytes(model: ModelFile) -> dict[str, bytes]:
    """Every tensor's bytes, read plainly."""
    found = {}
    for tensor in model.tensors:
        with model.shards[tensor.shard].path.open("rb") as file:
            file.seek(tensor.offset)
            found[tensor.name] = file.read(tensor.nbytes)
    return found


def elements(model: ModelFile, key: str) -> tuple[object, ...] | None:
    """The built elements of an array key."""
    value = model.metadata[key].value
    assert isinstance(value, ArrayValue)
    return value.elements


def test_a_small_model_is_read(tmp_path: Path) -> None:
    """T0(2) has 21 tensors and 312,576 bytes, its metadata with types and values."""
    model = read_model_file(t0(tmp_path / "m.gguf"))
    assert (len(model.tensors), model.n_bytes, model.version, model.alignment) == (21, 312_576, 3, 32)
    assert model.metadata["general.architecture"].value == "llama"
    assert model.metadata["llama.block_count"].type is ValueType.U32
    assert model.metadata["llama.block_count"].value == 2
    assert model.by_name["blk.1.ffn_down.weight"].shape == (128, 64)
    assert model.n_params * 4 == model.n_bytes
    assert model.warnings == ()


@pytest.mark.parametrize("layers", [1, 4, 12])
def test_layers_have_the_bytes_that_are_known(tmp_path: Path, layers: int) -> None:
    """Each layer of T0 adds nine tensors of 147,968 bytes."""
    model = read_model_file(t0(tmp_path / "m.gguf", layers))
    assert (len(model.tensors), model.n_bytes) == (9 * layers + 3, 147_968 * layers + 16_640)


def test_version_2_says_the_same(tmp_path: Path) -> None:
    """A version 2 file gives the same facts as version 3."""
    path = t0(tmp_path / "m.gguf")
    three = read_model_file(path)
    with path.open("r+b") as file:
        file.seek(4)
        file.write(b"\2")
    two = read_model_file(path)
    assert (two.version, two.metadata, two.tensors) == (2, three.metadata, three.tensors)


def test_every_scalar_type(tmp_path: Path) -> None:
    """Each value type is read with its own width, sign and precision."""
    values: dict[ValueType, int | float | bool | str] = {
        ValueType.U8: 255,
        ValueType.I8: -128,
        ValueType.U16: 65535,
        ValueType.I16: -32768,
        ValueType.U32: 2**32 - 1,
        ValueType.I32: -(2**31),
        ValueType.F32: 0.5,
        ValueType.BOOL: True,
        ValueType.STRING: "grüße",
        ValueType.U64: 2**64 - 1,
        ValueType.I64: -(2**63),
        ValueType.F64: 0.1,
    }
    keys: dict[str, MetadataValue | None] = {kind.name: Typed(kind, value) for kind, value in values.items()}
    keys |= {f"{kind.name}[]": Typed(kind, [value, value], array=True) for kind, value in values.items()}
    model = read_model_file(t0(tmp_path / "m.gguf", set_keys=keys))
    for kind, value in values.items():
        assert (model.metadata[kind.name].type, model.metadata[kind.name].value) == (kind, value)
        assert read_array(model, f"{kind.name}[]") == [value, value]


def test_a_boolean_is_true_unless_zero(tmp_path: Path) -> None:
    """The byte 2 is true, as the reference reads it."""
    path = raw_file(tmp_path / "m.gguf", keys=[entry("a", 7, b"\2"), entry("b", 7, b"\0"), array("c", 7, 2, b"\xff\0")])
    model = read_model_file(path)
    assert (model.metadata["a"].value, model.metadata["b"].value, elements(model, "c")) == (True, False, (True, False))


def test_a_value_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    """Bytes of a value that are not UTF-8 come escaped, so that the text can always be written as JSON."""
    path = raw_file(
        tmp_path / "m.gguf", keys=[entry("a", 8, string(b"x\xff\xc3")), array("b", 8, 1, string(b"\xf0\x9f"))]
    )
    model = read_model_file(path)
    assert model.metadata["a"].value == "x\\xff\\xc3"
    assert read_array(model, "b") == ["\\xf0\\x9f"]


def test_a_key_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    """Keys are compared by their bytes and shown escaped: two that look alike are kept apart, and so is a third."""
    keys = [u32(b"\xff", 1), u32(rb"\xff", 2), u32(b"\xff\xfe", 3), array(b"a\xff", 8, 1, string("x"))]
    model = read_model_file(raw_file(tmp_path / "m.gguf", keys=keys))
    assert {key: entry.value for key, entry in model.metadata.items() if key[0] == "\\"} == {
        r"\xff": 1,
        "\\xff\\": 2,
        r"\xff\xfe": 3,
    }
    assert read_array(model, r"a\xff") == ["x"]
    assert all(key == entry.key for key, entry in model.metadata.items())


def test_nothing_at_all_is_a_file(tmp_path: Path) -> None:
    """A header that counts zero keys and zero tensors is a readable file."""
    model = read_model_file(raw_file(tmp_path / "m.gguf", keys=[]))
    assert (dict(model.metadata), model.tensors, model.shards[0].data_start) == ({}, (), 24)


def test_a_string_may_end_with_the_file(tmp_path: Path) -> None:
    """A string whose length is exactly what remains is read; one byte less is refused."""
    content = hdr(0, 1) + entry("k", 8, string("abc"))
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert read_model_file(path).metadata["k"].value == "abc"
    path.write_bytes(content[:-1])
    with pytest.raises(FileError) as caught:
        read_model_file(path)
    assert (caught.value.code, caught.value.facts["key"]) == ("truncated", "k")


def test_arrays_may_end_with_the_file(tmp_path: Path) -> None:
    """Arrays of numbers and of strings that end with the file's last byte are read."""
    for kind, payload in ((4, bytes(8)), (8, string("ab") + string(""))):
        path = raw_file(tmp_path / "m.gguf", keys=[array("k", kind, 2, payload)])
        assert len(read_array(read_model_file(path), "k")) == 2


def test_empty_arrays(tmp_path: Path) -> None:
    """Arrays of no elements are legal for every element type."""
    for kind in set(ValueType) - {ValueType.ARRAY}:
        model = read_model_file(raw_file(tmp_path / "m.gguf", keys=[array("k", kind, 0), u32("after", 7)]))
        assert read_array(model, "k") == []
        assert model.metadata["after"].value == 7


def test_zero_extents_cost_nothing(tmp_path: Path) -> None:
    """A tensor with a dimension of 0 has no bytes, and the next one starts at the same place."""
    path = raw_file(
        tmp_path / "m.gguf", infos=[info("a", [0], offset=0), info("b", [8], offset=0)], data=bytes(range(32))
    )
    model = read_model_file(path)
    first, second = model.tensors
    assert first.offset == second.offset == model.shards[0].data_start
    assert (first.nbytes, second.nbytes, first.n_elements) == (0, 32, 0)


@pytest.mark.parametrize(
    ("shape", "kind", "kept", "nbytes"),
    [
        ([0], 0, (0,), 0),
        ([0, 5], 0, (0, 5), 0),
        ([5, 0], 0, (5, 0), 0),
        ([4, 0, 7], 0, (4, 0, 7), 0),
        ([0, 3], 12, (0, 3), 0),
        ([], 0, (1,), 4),
        ([1], 0, (1,), 4),
        ([1, 1, 1, 1], 0, (1,), 4),
        ([8, 1, 1], 0, (8,), 32),
        ([2, 1, 2, 1], 0, (2, 1, 2), 16),
        ([2, 2, 1, 2], 0, (2, 2, 1, 2), 32),
        ([256, 2], 12, (256, 2), 288),
        ([32], 39, (32,), 17),
        ([64], 40, (64,), 36),
        ([128], 41, (128,), 18),
        ([64], 42, (64,), 18),
    ],
)
def test_shapes_lose_trailing_ones(
    tmp_path: Path, shape: list[int], kind: int, kept: tuple[int, ...], nbytes: int
) -> None:
    """Shapes keep their extents but for trailing ones; sizes count whole blocks."""
    path = raw_file(tmp_path / "m.gguf", infos=[info("t", shape, kind)], data=bytes(288))
    (tensor,) = read_model_file(path).tensors
    assert (tensor.shape, tensor.nbytes) == (kept, nbytes)


def test_a_name_of_63_bytes_is_whole(tmp_path: Path) -> None:
    """Names of 63 bytes are kept whole, so two that differ in the last letter stay two."""
    names = ["n" * 62 + "a", "n" * 62 + "b"]
    infos = [info(name, [8], offset=32 * index) for index, name in enumerate(names)]
    model = read_model_file(raw_file(tmp_path / "m.gguf", infos=infos, data=bytes(64)))
    assert [tensor.name for tensor in model.tensors] == names


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment_sets_where_tensors_lie(tmp_path: Path, alignment: int) -> None:
    """Any power of two aligns the data section and each tensor in it."""
    path = t0(tmp_path / "m.gguf", alignment=alignment)
    model = read_model_file(path)
    assert model.alignment == alignment
    assert model.shards[0].data_start % alignment == 0
    assert all(tensor.offset % alignment == 0 for tensor in model.tensors)
    assert tensor_bytes(model) == tensor_bytes(read_model_file(t0(tmp_path / "other.gguf")))


def test_the_last_real_byte_is_enough(tmp_path: Path) -> None:
    """Padding behind the last tensor may be missing, and bytes may follow; a missing byte is refused by name."""
    for size in (164, 170, 192, 1000):
        path = raw_file(tmp_path / "m.gguf", infos=[info("t", [9])], data=bytes(36))
        start = read_model_file(path).shards[0].data_start
        os.truncate(path, start + size - 128)
        assert read_model_file(path).tensors[0].nbytes == 36
    os.truncate(path, start + 35)
    with pytest.raises(FileError) as caught:
        read_model_file(path)
    assert (caught.value.code, caught.value.facts["tensor"]) == ("out_of_bounds", "t")


def test_a_whole_model_without_final_padding(tmp_path: Path) -> None:
    """A model aligned to 512 may end with its last tensor's 256 bytes; one byte less names that tensor."""
    path = t0(tmp_path / "m.gguf", drop=["output_norm.weight"], add=[("output_norm.weight", F32, (64,))], alignment=512)
    last = read_model_file(path).tensors[-1]
    assert (last.name, last.nbytes) == ("output_norm.weight", 256)
    os.truncate(path, last.offset + 256)
    assert read_model_file(path).n_bytes == 312_576
    os.truncate(path, last.offset + 255)
    with pytest.raises(FileError, match="output_norm"):
        read_model_file(path)


def test_short_arrays_are_built_and_long_ones_walked(tmp_path: Path) -> None:
    """Numeric arrays up to 4096 elements are in memory; longer ones and strings are read when asked for."""
    keys: dict[str, MetadataValue | None] = {
        "short": Typed(ValueType.U32, list(range(4096)), array=True),
        "long": Typed(ValueType.U32, list(range(4097)), array=True),
        "words": ["a", "", "ccc"],
    }
    model = read_model_file(t0(tmp_path / "m.gguf", set_keys=keys))
    assert elements(model, "short") == tuple(range(4096))
    assert elements(model, "long") is None
    assert elements(model, "words") is None
    assert read_array(model, "long") == list(range(4097))
    assert read_array(model, "words") == ["a", "", "ccc"]


def test_arrays_can_be_read_in_pages(tmp_path: Path) -> None:
    """Pages of an array are what slices of the whole would be, whatever the bounds."""
    words = [f"token {index}" * (index % 7) for index in range(30_000)]
    keys: dict[str, MetadataValue | None] = {
        "words": Typed(ValueType.STRING, words, array=True),
        "numbers": Typed(ValueType.I64, list(range(-5000, 5000)), array=True),
        "short": Typed(ValueType.F32, [0.5, 1.5], array=True),
    }
    model = read_model_file(t0(tmp_path / "m.gguf", set_keys=keys))
    for start, stop in ((0, None), (0, 0), (7, 9), (29_990, 40_000), (40_000, 50_000), (-3, 2), (5, -1)):
        first, last = max(start, 0), None if stop is None else max(stop, 0)
        assert read_array(model, "words", start, stop) == words[first:last]
        assert read_array(model, "numbers", start, stop) == list(range(-5000, 5000))[first:last]
        assert read_array(model, "short", start, stop) == [0.5, 1.5][first:last]


def test_arrays_that_are_not_there(tmp_path: Path) -> None:
    """Asking for a missing key or for one that is no array names the key."""
    model = read_model_file(t0(tmp_path / "m.gguf"))
    for key, code in (("no.such", "missing_key"), ("llama.block_count", "wrong_key_type")):
        with pytest.raises(MetadataError, match=key) as caught:
            read_array(model, key)
        assert caught.value.code == code


def test_arrays_of_a_file_that_changed(tmp_path: Path) -> None:
    """Elements are never read from a file that is not the one that was validated."""
    keys: dict[str, MetadataValue | None] = {"words": ["a", "b"]}
    path = t0(tmp_path / "m.gguf", set_keys=keys)
    model = read_model_file(path)
    t0(path, set_keys=keys, seed=1)
    with pytest.raises(FileError) as caught:
        read_array(model, "words")
    assert caught.value.code == "file_changed"
    path.unlink()
    with pytest.raises(FileError) as caught:
        read_array(model, "words")
    assert caught.value.code == "file_changed"


@pytest.mark.parametrize(
    ("limit", "limits"),
    [
        ("n_keys", ReadLimits(n_keys=3)),
        ("n_tensors", ReadLimits(n_tensors=20)),
        ("key_bytes", ReadLimits(key_bytes=10)),
        ("string_bytes", ReadLimits(string_bytes=4)),
        ("text_bytes", ReadLimits(text_bytes=100)),
        ("array_elements", ReadLimits(array_elements=3)),
        ("array_strings", ReadLimits(array_strings=3)),
        ("built_elements", ReadLimits(built_elements=3)),
        ("header_bytes", ReadLimits(header_bytes=400)),
        ("header_bytes", ReadLimits(header_bytes=100)),
    ],
)
def test_each_limit_refuses_by_its_name(tmp_path: Path, limit: str, limits: ReadLimits) -> None:
    """A header over a limit is refused, naming the limit, its value and what was found."""
    keys: dict[str, MetadataValue | None] = {"a": [1, 2, 3, 4], "b": ["x", "y", "z", "w"]}
    path = t0(tmp_path / "m.gguf", set_keys=keys)
    assert read_model_file(path).n_bytes == 312_576
    with pytest.raises(FileError, match=limit) as caught:
        read_model_file(path, limits)
    facts = caught.value.facts
    assert (caught.value.code, facts["limit"], facts["expected"]) == ("limit_exceeded", limit, getattr(limits, limit))
    assert isinstance(facts["found"], int)
    assert facts["found"] > getattr(limits, limit)


def test_a_long_string_in_an_array_is_refused(tmp_path: Path) -> None:
    """The limit on strings holds inside arrays too, and names the element."""
    path = raw_file(tmp_path / "m.gguf", keys=[array("k", 8, 2, string("a") + string("b" * 100))])
    with pytest.raises(FileError, match=r"'k'\[1\]: length") as caught:
        read_model_file(path, ReadLimits(string_bytes=99))
    assert caught.value.code == "limit_exceeded"


def test_a_long_vocabulary_crosses_windows(tmp_path: Path) -> None:
    """Strings that lie across the edges of the reading window are found where they are."""
    words = ["x" * (index % 997) for index in range(6000)]  # about 3 MB: the window ends inside lengths and texts
    path = t0(tmp_path / "m.gguf", set_keys={"words": Typed(ValueType.STRING, words, array=True), "after": 5})
    model = read_model_file(path)
    assert model.metadata["after"].value == 5
    assert read_array(model, "words", 2990, 3010) == words[2990:3010]
    assert len(model.tensors) == 21


def test_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    """Keys, types, tensors, places and bytes are those that the gguf package's reader finds."""
    path = tp(
        tmp_path / "m.gguf",
        4,
        512,
        2,
        types={"blk.0.ffn_down.weight": "q4_K", "blk.1.attn_q.weight": "q8_0", "output.weight": "f16"},
        set_keys={"words": ["a", "b"], "n": [1, 2]},
    )
    model, theirs = read_model_file(path), gguf.GGUFReader(path)
    ours = tensor_bytes(model)
    assert [tensor.name for tensor in model.tensors] == [tensor.name for tensor in theirs.tensors]
    for mine, other in zip(model.tensors, theirs.tensors, strict=True):
        assert (mine.offset, mine.nbytes, mine.n_elements) == (other.data_offset, other.n_bytes, other.n_elements)
        assert (mine.type.id, list(mine.shape)) == (other.tensor_type, other.shape.tolist())
        assert ours[mine.name] == other.data.tobytes()
    assert set(model.metadata) == {name for name in theirs.fields if not name.startswith("GGUF.")}
    assert theirs.fields["words"].contents() == read_array(model, "words")


def test_recorded_headers_of_real_models(oracle_dir: Path, tmp_path: Path) -> None:
    """Headers of two dozen public models, up to 400 GB, are each read within a few hundredths of a second."""
    for header in sorted((oracle_dir / "headers" / "real").glob("*.hdr")):
        path = tmp_path / "m.gguf"
        expected = materialise(header, path)
        start = time.monotonic()
        model = read_model_file(path)
        assert time.monotonic() - start < 0.5
        assert model.n_bytes == expected.n_bytes > 10**8
        with pytest.raises(FileError) as caught:
            read_model_file(header)
        assert caught.value.code == "out_of_bounds"


def test_tokenizer_only_files(oracle_dir: Path) -> None:
    """Files with a vocabulary and no tensors are read whole."""
    for path in sorted((oracle_dir / "vocab").glob("*.gguf")):
        model = read_model_file(path)
        assert model.tensors == ()
        tokens = read_array(model, "tokenizer.ggml.tokens")
        assert len(tokens) > 30_000
        assert all(isinstance(token, str) for token in tokens)


def test_offsets_over_4_gib(tmp_path: Path) -> None:
    """Sizes and offsets are 64-bit everywhere: a tensor behind one of 5 GiB is found."""
    path = tmp_path / "m.gguf"
    infos = [info("big", [5 << 29, 2], 1, 0), info("last", [64], 0, 10 << 30)]
    raw_file(path, infos=infos)
    head = path.stat().st_size
    start = -(-head // 32) * 32
    with path.open("r+b") as file:
        file.seek(start + (10 << 30))
        file.write(b"\x5a" * 256)
    model = read_model_file(path)
    assert (model.tensors[1].offset, model.tensors[0].nbytes) == (start + (10 << 30), 10 << 30)
    assert tensor_bytes(ModelFile(**{**model.__dict__, "tensors": model.tensors[1:]}))["last"] == b"\x5a" * 256
