from pathlib import Path

import gguf
import numpy as np
import pytest

from app.ggml import BY_NAME, TYPES, GgmlType, dequantise
from app.modelfile.reader import read_array, read_model_file
from app.modelfile.types import ValueType
from app.modelfile.writer import Typed, seeded_chunks, write_gguf
from app.units import MIB


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """Metadata of plain Python values and tensors' bytes come back as they were given."""
    path = tmp_path / "m.gguf"
    data = np.arange(24, dtype=np.float32).tobytes()
    size = write_gguf(
        path,
        {"s": "text", "b": True, "u": 7, "i": -7, "f": 0.5, "w": ["a", "b"], "n": [1, -2], "x": [0.5], "e": []},
        [("t", BY_NAME["f32"], (4, 3, 2), data), ("scalar", BY_NAME["f16"], (), b"\0<")],
    )
    assert size == path.stat().st_size
    model = read_model_file(path)
    kinds = {key: entry.type for key, entry in model.metadata.items()}
    assert kinds["u"] is ValueType.U32
    assert kinds["i"] is ValueType.I32
    assert [model.metadata[key].value for key in "sbuif"] == ["text", True, 7, -7, 0.5]
    assert [read_array(model, key) for key in "wnxe"] == [["a", "b"], [1, -2], [0.5], []]
    assert [tensor.shape for tensor in model.tensors] == [(4, 3, 2), (1,)]
    start = model.tensors[0].offset
    assert path.read_bytes()[start : start + 96] == data


def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    """A written file is the same to the gguf package's reader."""
    path = tmp_path / "m.gguf"
    write_gguf(path, {"k": Typed(ValueType.U64, 2**40)}, [("t", BY_NAME["q8_0"], (64, 2), 5)], alignment=64)
    reader = gguf.GGUFReader(path)
    assert reader.fields["k"].contents() == 2**40
    assert reader.alignment == 64
    assert reader.tensors[0].data.tobytes() == b"".join(seeded_chunks(BY_NAME["q8_0"], 136, 5))


def test_holes_cost_no_disk(tmp_path: Path) -> None:
    """A tensor without data is zeros that take no space."""
    path = tmp_path / "m.gguf"
    f16, i8 = BY_NAME["f16"], BY_NAME["i8"]
    size = write_gguf(path, {}, [("big", f16, (1 << 20, 1 << 10), None), ("end", i8, (4,), b"abcd")])
    assert size > 2 << 30
    assert path.stat().st_blocks * 512 < MIB
    last = read_model_file(path).tensors[1]
    with path.open("rb") as file:
        file.seek(last.offset - 4)
        assert file.read(8) == bytes(4) + b"abcd"


def test_wrong_lengths_are_the_callers_fault(tmp_path: Path) -> None:
    """Bytes that don't fit the shape are refused before anything is written."""
    with pytest.raises(ValueError, match="tensor t has 16 bytes, 15"):
        write_gguf(tmp_path / "m.gguf", {}, [("t", BY_NAME["f32"], (4,), bytes(15))])
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_seeded_numbers_are_finite(kind: GgmlType) -> None:
    """Seeded bytes are finite in every tensor type, the same for the same seed, and different for another."""
    nbytes = kind.type_size * 64
    filled = b"".join(seeded_chunks(kind, nbytes, 1))
    assert len(filled) == nbytes
    assert filled == b"".join(seeded_chunks(kind, nbytes, 1))
    assert filled != b"".join(seeded_chunks(kind, nbytes, 2))
    values = dequantise(kind, np.frombuffer(filled, np.uint8).reshape(4, -1))
    assert np.isfinite(values).all()


def test_seeded_bytes_do_not_depend_on_the_length(tmp_path: Path) -> None:
    """A longer tensor of the same seed starts with the bytes of a shorter one, and large ones never repeat soon."""
    kind = BY_NAME["q4_0"]
    long = b"".join(seeded_chunks(kind, 3 * MIB + 18, 9))
    assert long.startswith(b"".join(seeded_chunks(kind, 2 * MIB, 9)))
    assert long[:MIB] != long[MIB : 2 * MIB]
