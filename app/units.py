"""Sizes and durations: alignment arithmetic and how they are written for people."""

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
