from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from app.ggml import BY_NAME, TYPES, GgmlType, dequantise

RECORDED = (
    *("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
    *("tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0"),
)


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_the_table_agrees_with_the_gguf_package(kind: GgmlType) -> None:
    """Each type that the gguf package knows has the same name, block length and block size there."""
    try:
        theirs = GGMLQuantizationType(kind.id)
    except ValueError:
        pytest.skip("the gguf package does not know this type yet")
    assert kind.name.lower() == theirs.name.lower()
    if kind.name != "q8_1":  # the package counts two float32 before the integers, ggml has two float16
        assert (kind.block_size, kind.type_size) == gguf.GGML_QUANT_SIZES[theirs]


def test_the_table_misses_no_type_of_the_gguf_package() -> None:
    """No type id that the gguf package knows is missing here."""
    assert {kind.value for kind in GGMLQuantizationType} <= set(TYPES)


@pytest.mark.parametrize("removed", [4, 5, 31, 32, 33, 36, 37, 38, 43])
def test_removed_and_unknown_ids_are_no_types(removed: int) -> None:
    """Ids that were removed upstream, and the first unused one, are not in the table."""
    assert removed not in TYPES


def test_row_bytes_count_blocks() -> None:
    """A row's bytes are its blocks times the block's size."""
    assert BY_NAME["q4_K"].row_bytes(512) == 288
    assert BY_NAME["f32"].row_bytes(0) == 0


@pytest.mark.parametrize("name", RECORDED)
def test_dequantised_as_the_reference_bit_for_bit(name: str, oracle_dir: Path) -> None:
    """For every recorded type the float32 bits are those of the reference."""
    raw = np.fromfile(oracle_dir / "dequant" / f"{name}.bin", np.uint8)
    expected = np.fromfile(oracle_dir / "dequant" / f"{name}.f32", np.uint32).reshape(8, 512)
    values = dequantise(BY_NAME[name], raw.reshape(8, -1))
    assert values.dtype == np.float32
    assert np.array_equal(expected, values.view(np.uint32))


def test_every_recorded_type_is_tested(oracle_dir: Path) -> None:
    """The list above is the whole recording."""
    assert {path.stem for path in (oracle_dir / "dequant").glob("*.bin")} == set(RECORDED)


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_every_type_can_be_dequantised(kind: GgmlType) -> None:
    """Whatever the bytes, each type gives one float32 an element, row by row, without a warning."""
    rng = np.random.default_rng(kind.id)
    rows = rng.integers(0, 256, (3, 2 * kind.type_size), np.uint8)
    values = dequantise(kind, rows)
    assert values.shape == (3, 2 * kind.block_size)
    assert values.dtype == np.float32
    assert np.array_equal(values[1:2].view(np.uint32), dequantise(kind, rows[1:2]).view(np.uint32))


@pytest.mark.parametrize("name", ["f32", "q4_K", "q2_0"])
def test_no_rows_give_no_values(name: str) -> None:
    """Zero rows, and rows of zero length, are legal."""
    kind = BY_NAME[name]
    assert dequantise(kind, np.empty((0, kind.type_size), np.uint8)).shape == (0, kind.block_size)
    assert dequantise(kind, np.empty((2, 0), np.uint8)).shape == (2, 0)


@pytest.mark.parametrize(
    ("name", "block", "expected"),
    [
        ("q2_0", np.float16(2).tobytes() + bytes([0b11_10_01_00] * 16), [-2, 0, 2, 4] * 16),
        ("q1_0", np.float16(0.5).tobytes() + bytes([0b00000101] * 16), ([0.5, -0.5, 0.5] + [-0.5] * 5) * 16),
        ("q8_1", np.float16(0.5).tobytes() + bytes(2) + bytes([1, 255] * 16), [0.5, -0.5] * 16),
        ("q8_K", np.float32(3).tobytes() + bytes([2, 254] * 128) + bytes(32), [6, -6] * 128),
    ],
)
def test_types_of_our_own_by_hand(name: str, block: bytes, expected: list[float]) -> None:
    """The types the package lacks give values that can be computed by hand."""
    values = dequantise(BY_NAME[name], np.frombuffer(block, np.uint8).reshape(1, -1))
    assert expected == values[0].tolist()
