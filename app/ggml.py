"""ggml's tensor types: id, name, block length in elements, block size in bytes; and row dequantisation.

The ids and block layouts are ggml's (`ggml.h`, `ggml-common.h` of the reference). The table is written out here,
not imported, because importing the `gguf` package costs more than the rest of start-up allows; a test holds the two
against each other. Ids 4, 5, 31–33 and 36–38 were removed upstream and are no types at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One tensor type. `block_size` is in elements, `type_size` in bytes per block."""

    id: int
    name: str
    block_size: int
    type_size: int

    def row_bytes(self, n_elements: int) -> int:
        """Bytes of `n_elements` consecutive elements; `n_elements` must be a multiple of the block."""
        return n_elements // self.block_size * self.type_size


_ROWS: Final = (
    (0, "f32", 1, 4),
    (1, "f16", 1, 2),
    (2, "q4_0", 32, 18),
    (3, "q4_1", 32, 20),
    (6, "q5_0", 32, 22),
    (7, "q5_1", 32, 24),
    (8, "q8_0", 32, 34),
    (9, "q8_1", 32, 36),
    (10, "q2_K", 256, 84),
    (11, "q3_K", 256, 110),
    (12, "q4_K", 256, 144),
    (13, "q5_K", 256, 176),
    (14, "q6_K", 256, 210),
    (15, "q8_K", 256, 292),
    (16, "iq2_xxs", 256, 66),
    (17, "iq2_xs", 256, 74),
    (18, "iq3_xxs", 256, 98),
    (19, "iq1_s", 256, 50),
    (20, "iq4_nl", 32, 18),
    (21, "iq3_s", 256, 110),
    (22, "iq2_s", 256, 82),
    (23, "iq4_xs", 256, 136),
    (24, "i8", 1, 1),
    (25, "i16", 1, 2),
    (26, "i32", 1, 4),
    (27, "i64", 1, 8),
    (28, "f64", 1, 8),
    (29, "iq1_m", 256, 56),
    (30, "bf16", 1, 2),
    (34, "tq1_0", 256, 54),
    (35, "tq2_0", 256, 66),
    (39, "mxfp4", 32, 17),
    (40, "nvfp4", 64, 36),
    (41, "q1_0", 128, 18),
    (42, "q2_0", 64, 18),
)

TYPES: Final[dict[int, GgmlType]] = {row[0]: GgmlType(*row) for row in _ROWS}
BY_NAME: Final[dict[str, GgmlType]] = {kind.name: kind for kind in TYPES.values()}


def dequantise(kind: GgmlType, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The float32 values of rows in the tensor type `kind`: uint8 `[n_rows, row_bytes]` in, `[n_rows, ne0]` out.

    Bit for bit what the reference's dequantisation gives. The rows must be whole blocks.
    """
    import numpy as np

    n_rows, row_bytes = rows.shape
    rows = np.ascontiguousarray(rows)
    shape = (n_rows, row_bytes // kind.type_size * kind.block_size)
    if 0 in shape:
        return np.empty(shape, np.float32)
    plain = _PLAIN.get(kind.name)
    with np.errstate(all="ignore"):  # whatever the bytes, a NaN or an infinity is a value like any other
        if plain is not None:
            return rows.view(plain).astype(np.float32)
        blocks = rows.reshape(-1, kind.type_size)
        values = np.empty((len(blocks), kind.block_size), np.float32)
        group = max(1, _GROUP_VALUES // kind.block_size)  # what is computed on the way stays in a processor's cache
        convert = _dequantise_blocks if kind.name in _OWN else _dequantise_by_package
        for first in range(0, len(blocks), group):
            part = blocks[first : first + group]
            values[first : first + group] = convert(kind, part).reshape(len(part), -1)
        return values.reshape(shape)


_GROUP_VALUES: Final = 131_072


_PLAIN: Final = {"f32": "<f4", "f16": "<f2", "f64": "<f8", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}
# A scale and, from this byte on, its integers of 8 bits. Between the two of q8_1 is a sum; q8_K's sums are at the end.
_BYTES_AT: Final = {"q8_0": 2, "q8_1": 4, "q8_K": 4}
# What the package's dequantisation lacks, and q8_0, embeddings' commonest type, that it makes more copies for.
_OWN: Final = frozenset({"q1_0", "q2_0", *_BYTES_AT})


def _dequantise_by_package(kind: GgmlType, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One block a row in, one row of all values out: a single row is what the package converts in one go."""
    from gguf import GGMLQuantizationType, quants  # costs more than the rest of start-up, and most runs need none

    values: NDArray[np.float32] = quants.dequantize(blocks.reshape(1, -1), GGMLQuantizationType(kind.id))
    return values


def _dequantise_blocks(kind: GgmlType, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One block a row. All are a scale times small integers, packed from the lowest bit up."""
    import numpy as np

    width = 4 if kind.name == "q8_K" else 2
    scale = blocks[:, :width].copy().view(f"<f{width}").astype(np.float32)
    if (at := _BYTES_AT.get(kind.name)) is not None:
        return scale * blocks[:, at : at + kind.block_size].view(np.int8)
    if kind.name == "q1_0":
        bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
        return np.where(bits.astype(bool), scale, -scale)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)
    quants = (blocks[:, 2:, None] >> shifts) & 3
    return scale * (quants.reshape(len(blocks), -1).astype(np.float32) - np.float32(1))
