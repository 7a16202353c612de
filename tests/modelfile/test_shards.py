import hashlib
from pathlib import Path

import pytest

from app.errors import FileError
from app.modelfile.limits import ReadLimits
from app.modelfile.reader import read_array, read_model_file
from app.modelfile.types import ModelFile
from app.modelfile.writer import write_gguf
from tests.builders import llama_keys, llama_tensors, shard_name, split_keys, t0, t0_split


def hashes(model: ModelFile) -> dict[str, str]:
    """Every tensor's bytes, hashed."""
    found = {}
    for tensor in model.tensors:
        with model.shards[tensor.shard].path.open("rb") as file:
            file.seek(tensor.offset)
            found[tensor.name] = hashlib.sha256(file.read(tensor.nbytes)).hexdigest()
    return found


@pytest.fixture
def whole(tmp_path: Path) -> ModelFile:
    """T0(4) in one file."""
    (tmp_path / "whole").mkdir()
    return read_model_file(t0(tmp_path / "whole" / "m.gguf", 4))


@pytest.mark.parametrize("sizes", [(13, 13, 13), (20, 19), (0, 20, 19), (39, 0), (1,) * 39])
def test_a_set_is_one_model(tmp_path: Path, whole: ModelFile, sizes: tuple[int, ...]) -> None:
    """A set of shards has the tensors of the whole model, in order, with the same bytes."""
    paths = t0_split(tmp_path, sizes)
    model = read_model_file(paths[0])
    assert model.path == paths[0]
    assert [tensor.name for tensor in model.tensors] == [tensor.name for tensor in whole.tensors]
    assert hashes(model) == hashes(whole)
    assert (model.n_bytes, len(model.shards)) == (608_512, len(sizes))
    assert [tensor.shard for tensor in model.tensors] == [n for n, size in enumerate(sizes) for _ in range(size)]
    assert model.metadata["llama.block_count"].value == 4
    assert model.warnings == ()


def test_a_first_shard_of_metadata_alone_may_end_with_it(tmp_path: Path, whole: ModelFile) -> None:
    """A first shard without tensors needs no padding and no data section."""
    paths = t0_split(tmp_path, (0, 20, 19))
    model = read_model_file(paths[0])
    assert model.shards[0].data_start == model.shards[0].identity.size
    assert hashes(model) == hashes(whole)


@pytest.mark.parametrize("ask", [1, 2])
def test_a_later_shard_leads_to_the_first(tmp_path: Path, ask: int) -> None:
    """A later shard gives the same model as the first, and a warning that says so."""
    paths = t0_split(tmp_path, (13, 13, 13))
    first, later = read_model_file(paths[0]), read_model_file(paths[ask])
    assert (later.shards, later.tensors, later.metadata) == (first.shards, first.tensors, first.metadata)
    assert later.path == paths[ask]
    (warning,) = later.warnings
    assert paths[0].name in warning
    assert paths[ask].name in warning


def test_a_set_of_one_is_complete(tmp_path: Path) -> None:
    """A file that says it is the only one of its set is a whole model, whatever its name."""
    (path,) = t0_split(tmp_path, (39,))
    assert read_model_file(path).n_bytes == 608_512
    assert read_model_file(path.rename(tmp_path / "other.gguf")).n_bytes == 608_512


@pytest.mark.parametrize("name", ["x-00001-of-00013.gguf", "x-00004-of-00013.gguf", "x.gguf.part1of2", "noext"])
def test_names_do_not_make_a_set(tmp_path: Path, name: str) -> None:
    """A file without split keys is a whole model even if its name looks like a shard's."""
    assert read_model_file(t0(tmp_path / name)).n_bytes == 312_576


def test_only_the_end_of_the_name_counts(tmp_path: Path) -> None:
    """Folders with names like shards do not disturb, nor does a name that is nothing but the ending."""
    for prefix in ("m", "", "a-00001-of-00013", "with.dots-"):
        folder = tmp_path / f"a-00001-of-00013{prefix}"
        folder.mkdir()
        paths = t0_split(folder, (20, 19), prefix=prefix)
        assert read_model_file(paths[1]).n_bytes == 608_512


def test_links_of_a_cache(tmp_path: Path, whole: ModelFile) -> None:
    """Links with good names to files with none make a set, as model hubs keep them; so does a link to the first."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for index, path in enumerate(t0_split(blobs, (13, 13, 13))):
        blob = path.rename(blobs / hashlib.sha256(bytes([index])).hexdigest())
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    model = read_model_file(snapshot / shard_name("m", 0, 3))
    assert hashes(model) == hashes(whole)
    assert {shard.path.parent for shard in model.shards} == {blobs.resolve()}
    plain = t0_split(tmp_path, (20, 19), prefix="p")
    (tmp_path / "alias.gguf").symlink_to(plain[0])
    assert hashes(read_model_file(tmp_path / "alias.gguf")) == hashes(whole)


def test_each_shard_has_its_own_alignment(tmp_path: Path, whole: ModelFile) -> None:
    """The alignment of a shard is the one it names itself."""
    paths = t0_split(tmp_path, (13, 13, 13), alignments=(32, 4096, 8))
    model = read_model_file(paths[0])
    assert hashes(model) == hashes(whole)
    assert [shard.data_start % 4096 for shard in model.shards][1] == 0
    assert all(tensor.offset % 4096 == 0 for tensor in model.tensors if tensor.shard == 1)


def test_a_folder_with_one_model(tmp_path: Path) -> None:
    """A folder that holds one file, or one set, stands for it; other files there do not matter."""
    single, split, odd = tmp_path / "single", tmp_path / "split", tmp_path / "odd"
    for folder in (single, split, odd):
        folder.mkdir()
        (folder / "README.md").write_text("a model")
    t0(single / "m.gguf")
    t0_split(split, (13, 13, 13))
    t0(odd / "x-00002-of-00003.gguf")
    assert read_model_file(single).n_bytes == 312_576
    assert read_model_file(single).path == single
    assert read_model_file(split).n_bytes == 608_512
    assert read_model_file(odd).n_bytes == 312_576


def test_the_roots_hold_for_every_shard(tmp_path: Path) -> None:
    """A shard that lies outside the roots counts as missing, and so does a whole folder."""
    root = tmp_path / "models"
    root.mkdir()
    paths = t0_split(root, (13, 13, 13))
    assert read_model_file(paths[0], roots=[root]).n_bytes == 608_512
    moved = paths[2].rename(tmp_path / paths[2].name)
    paths[2].symlink_to(moved)
    with pytest.raises(FileError) as caught:
        read_model_file(paths[0], roots=[root])
    assert (caught.value.code, caught.value.facts["missing"]) == ("split_missing", [paths[2].name])
    assert read_model_file(paths[0]).n_bytes == 608_512


def test_a_bad_shard_is_named(tmp_path: Path) -> None:
    """A fault in a later shard names that shard's file."""
    paths = t0_split(tmp_path, (13, 13, 13))
    paths[2].write_bytes(paths[2].read_bytes()[:-200])
    with pytest.raises(FileError) as caught:
        read_model_file(paths[0])
    assert (caught.value.code, caught.value.facts["file"]) == ("out_of_bounds", str(paths[2]))


def test_limits_hold_over_all_shards(tmp_path: Path) -> None:
    """Tensors are counted over the whole set, and so are its files."""
    paths = t0_split(tmp_path, (13, 13, 13))
    for limits in (ReadLimits(n_tensors=38), ReadLimits(n_shards=2)):
        with pytest.raises(FileError) as caught:
            read_model_file(paths[0], limits)
        assert caught.value.code == "limit_exceeded"
    assert read_model_file(paths[0], ReadLimits(n_tensors=39, n_shards=3)).n_bytes == 608_512


def test_arrays_come_from_the_first_shard(tmp_path: Path) -> None:
    """Arrays are read from the shard that carries the metadata, whichever was asked for."""
    specs = llama_tensors(1)
    for number, part in enumerate((specs[:6], specs[6:])):
        keys = {**llama_keys(1), **split_keys(number, 2, len(specs)), "words": [f"shard {number}"]}
        write_gguf(tmp_path / shard_name("m", number, 2), keys, [(*spec, 0) for spec in part])
    model = read_model_file(tmp_path / shard_name("m", 1, 2))
    assert read_array(model, "words") == ["shard 0"]
