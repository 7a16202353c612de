"""Sizes and durations: alignment arithmetic and how they are written for people."""

import re
from decimal import Decimal
from typing import Final

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is not below `value`; `alignment` must be positive."""
    return -(-value // alignment) * alignment


def human_bytes(count: int) -> str:
    """`count` bytes in binary units with one decimal: `1.5 GiB`; below 1 KiB, whole bytes."""
    if count < KIB:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / KIB**power:.1f} {_UNITS[power - 1]}"


def human_seconds(seconds: float) -> str:
    """A duration for people: `850 µs`, `12.3 ms`, `4.56 s`, `3 min 5 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


_FACTORS: Final = {
    "": 1,
    "b": 1,
    **{unit.lower(): KIB**power for power, unit in enumerate(_UNITS, 1)},
    **{unit[0].lower(): KIB**power for power, unit in enumerate(_UNITS, 1)},
    **{unit[0].lower() + "b": 1000**power for power, unit in enumerate(_UNITS, 1)},
}
_SIZE: Final = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)\s*([A-Za-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """The bytes that a person's `8GiB`, `1.5G`, `500MB` or `4096` means: `G` is `GiB`, `GB` is decimal.

    Raises ValueError for anything else, and for sizes of 8 EiB or more.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _FACTORS:
        raise ValueError(f"{text!r} is not a size such as 8GiB, 500MB or 4096")
    count = int(Decimal(match[1]) * _FACTORS[match[2].lower()])
    if count >= 2**63:
        raise ValueError(f"{text!r} is larger than any memory")
    return count
