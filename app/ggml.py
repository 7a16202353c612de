"""ggml's tensor types: id, name, block length in elements, block size in bytes; and row dequantisation.

The ids and block layouts are ggml's (`ggml.h`, `ggml-common.h` of the reference). The table is written out here,
not imported, because importing the `gguf` package costs more than the rest of start-up allows; a test holds the two
against each other. Ids 4, 5, 31–33 and 36–38 were removed upstream and are no types at all.
"""

from dataclasses import dataclass
from typing import Final


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
