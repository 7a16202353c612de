import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.units import GIB, KIB, MIB, align_up, human_bytes, human_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("0", 0),
        ("8GiB", 8 * GIB),
        ("8gib", 8 * GIB),
        ("1.5G", 3 * GIB // 2),
        (" 512 MiB ", 512 * MIB),
        ("500MB", 500_000_000),
        ("1KB", 1000),
        ("1k", KIB),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    """A size may carry a binary or a decimal unit, or none."""
    assert count == parse_bytes(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 apples", "1e9", "nan", "inf", "8EiB", "9" * 30, "1.2.3", "٣"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """Anything else is a ValueError that repeats what was written."""
    with pytest.raises(ValueError, match=r"size|memory"):
        parse_bytes(text)


@given(st.integers(0, 2**62), st.integers(1, 2**20))
def test_aligning_goes_up_to_the_next_multiple(value: int, alignment: int) -> None:
    """The aligned value is a multiple, not below the value, and nearer than one alignment."""
    aligned = align_up(value, alignment)
    assert aligned % alignment == 0
    assert 0 <= aligned - value < alignment


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * GIB // 2, "1.5 GiB"), (2**63, "8.0 EiB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    """Bytes are shown in the largest binary unit that leaves a number of at least one."""
    assert text == human_bytes(count)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00085, "850 µs"), (0.0123, "12.3 ms"), (4.56, "4.56 s"), (185, "3 min 5 s")]
)
def test_durations_for_people(seconds: float, text: str) -> None:
    """Durations are shown in the unit a person would choose."""
    assert text == human_seconds(seconds)
