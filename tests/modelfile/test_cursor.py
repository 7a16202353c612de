import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import FileError
from app.modelfile.cursor import Cursor
from app.modelfile.limits import ReadLimits
from app.units import MIB
from tests.builders import string


class Content:
    """Bytes that note how they are read."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.reads: list[tuple[int, int]] = []

    def __call__(self, offset: int, length: int) -> bytes:
        assert 0 <= offset
        assert 0 < length
        assert offset + length <= len(self.content)
        self.reads.append((offset, length))
        return self.content[offset : offset + length]


def cursor_over(content: bytes, limits: ReadLimits = ReadLimits()) -> Cursor:  # noqa: B008 - a frozen value
    """A cursor at the start of `content`."""
    return Cursor(Content(content), len(content), "f", limits)


def refused(act: Callable[[], object]) -> FileError:
    """The error of an act."""
    with pytest.raises(FileError) as caught:
        act()
    return caught.value


def test_numbers_follow_each_other() -> None:
    """Integers are read little-endian, one behind the other."""
    cursor = cursor_over(struct.pack("<IQI", 7, 2**63 + 1, 2**32 - 1))
    assert (cursor.u32("a"), cursor.u64("b"), cursor.u32("c")) == (7, 2**63 + 1, 2**32 - 1)
    assert (cursor.position, cursor.remaining) == (16, 0)


@pytest.mark.parametrize("present", range(8))
def test_a_number_that_is_cut(present: int) -> None:
    """A number that runs past the end is truncated, with the bytes needed and there."""
    cursor = cursor_over(bytes(present))
    error = refused(lambda: cursor.u64(".n"))
    assert (error.code, error.facts["expected"], error.facts["found"]) == ("truncated", 8, present)
    assert "header.n" in error.message


@pytest.mark.parametrize("length", [2**62, 2**64 - 1, 2**80])
def test_lengths_beyond_any_file(length: int) -> None:
    """Taking or skipping more than remains is truncated, without an allocation."""
    cursor = cursor_over(bytes(100))
    assert refused(lambda: cursor.take(length, "x")).code == "truncated"
    assert refused(lambda: cursor.skip(length, "x")).code == "truncated"
    assert refused(lambda: cursor.walk_strings(length)).code == "truncated"


def test_counts_are_compared_with_what_remains() -> None:
    """A count of records that can't fit says how many could."""
    content = struct.pack("<Q", 5) + bytes(40)
    assert cursor_over(content).count(" n", 8) == 5
    error = refused(lambda: cursor_over(content[:-1]).count(" n", 8))
    assert (error.code, error.facts["expected"], error.facts["found"]) == ("truncated", 4, 5)


def test_memory_is_one_window() -> None:
    """Nothing larger than a megabyte is read at once, unless one string is longer."""
    words = [b"x" * (index % 3000) for index in range(4000)]
    content = Content(b"".join(string(word) for word in words))
    cursor = Cursor(content, len(content.content), "f", ReadLimits())
    cursor.walk_strings(len(words))
    assert cursor.remaining == 0
    assert max(length for _, length in content.reads) <= MIB
    assert sum(length for _, length in content.reads) < 1.1 * len(content.content)


def test_skipping_reads_nothing() -> None:
    """Skipped bytes are never read."""
    content = Content(bytes(10 * MIB) + struct.pack("<I", 9))
    cursor = Cursor(content, len(content.content), "f", ReadLimits())
    cursor.skip(10 * MIB, "x")
    assert content.reads == []
    assert cursor.u32("n") == 9
    assert content.reads == [(10 * MIB, 4)]


def test_the_header_limit_is_a_limit() -> None:
    """Reading and skipping past the header limit is limit_exceeded where the file goes on, truncated where not."""
    limits = ReadLimits(header_bytes=50)
    acts: list[Callable[[Cursor], object]] = [
        lambda cursor: cursor.take(51, "x"),
        lambda cursor: cursor.skip(51, "x"),
        lambda cursor: cursor.walk_strings(10),
    ]
    for act in acts:
        for size, code in ((100, "limit_exceeded"), (50, "truncated")):
            cursor = cursor_over(bytes(size), limits)
            assert refused(lambda act=act, cursor=cursor: act(cursor)).code == code  # type: ignore[misc]


@given(
    words=st.lists(st.binary(max_size=40), max_size=30),
    cut=st.integers(0, 50),
    limit=st.integers(0, 45),
)
def test_walking_judges_as_building_does(words: list[bytes], cut: int, limit: int) -> None:
    """Strings that are walked end where, and fail as, strings that are built do."""
    content = b"".join(string(word) for word in words)
    content = content[: len(content) - cut] if cut else content
    limits = ReadLimits(string_bytes=limit)
    walking, building = cursor_over(content, limits), cursor_over(content, limits)
    built = outcome(lambda: building.strings(len(words)))
    walked = outcome(lambda: walking.walk_strings(len(words)))
    if isinstance(built, str):
        assert walked == built
    else:
        assert (built, walked) == (words, None)
        assert walking.position == building.position


def outcome(act: Callable[[], object]) -> object:
    """What an act answers, or the code of its error."""
    try:
        return act()
    except FileError as error:
        return error.code
