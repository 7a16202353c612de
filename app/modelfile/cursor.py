"""A bounded reader over a header: it knows what remains, and never believes a length before comparing the two."""

import struct
from collections.abc import Callable
from typing import Final, NoReturn

from app.errors import Fact, FileError
from app.modelfile.limits import ReadLimits
from app.units import KIB, MIB

ReadAt = Callable[[int, int], bytes]
"""`read(offset, length)`: exactly that many bytes, which lie inside the file; raises FileError."""

_FIRST_WINDOW: Final = 64 * KIB  # the whole header of most files without a vocabulary
_WINDOW: Final = MIB
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class Cursor:
    """Walks forward through the first `limits.header_bytes` of a file of `size` bytes.

    Memory is one window of about a megabyte, or the one string that is longer. `subject` and `facts` say what is
    being read (`metadata key 'x.y'`, `tensors[3]`); every error carries them. Raises FileError only: `truncated`
    where the file ends too early, `limit_exceeded` where a bound of ours does.
    """

    __slots__ = ("_at", "_base", "_read", "_window", "facts", "file", "limits", "size", "subject")

    def __init__(self, read: ReadAt, size: int, file: str, limits: ReadLimits) -> None:
        self._read = read
        self._window = b""
        self._base = 0
        self._at = 0
        self.size: Final = size
        self.file: Final = file
        self.limits: Final = limits
        self.subject = "header"
        self.facts: dict[str, Fact] = {}

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the file."""
        return self.size - self._base - self._at

    def fail(self, code: str, problem: str, **facts: Fact) -> NoReturn:
        """Raise FileError(`code`) about the current subject."""
        raise FileError(f"{self.file}: {self.subject}{problem}", code=code, file=self.file, **{**self.facts, **facts})

    def u32(self, what: str) -> int:
        """The next unsigned 32-bit integer."""
        at = self._at
        if at + 4 > len(self._window):
            at = self._need(4, what)
        self._at = at + 4
        return int(_U32.unpack_from(self._window, at)[0])

    def u64(self, what: str) -> int:
        """The next unsigned 64-bit integer."""
        at = self._at
        if at + 8 > len(self._window):
            at = self._need(8, what)
        self._at = at + 8
        return int(_U64.unpack_from(self._window, at)[0])

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes."""
        at = self._at
        if at + length > len(self._window):
            at = self._need(length, what)
        self._at = at + length
        return self._window[at : at + length]

    def skip(self, length: int, what: str) -> None:
        """Pass over `length` bytes without reading them."""
        self._check(length, what)
        self._at += length

    def count(self, what: str, smallest: int) -> int:
        """A u64 count of records of at least `smallest` bytes each, refused if they cannot fit into what remains."""
        found = self.u64(what)
        if found * smallest > self.remaining:
            self.fail(
                "truncated",
                f"{what}: {found} entries need at least {found * smallest} bytes, {self.remaining} remain",
                expected=self.remaining // smallest,
                found=found,
            )
        return found

    def length(self, what: str, limit: int, limit_name: str) -> int:
        """A u64 string length, refused if it runs past the file's end or the limit."""
        found = self.u64(what)
        if found > self.remaining:
            self._truncated(found, what)
        if found > limit:
            self.over(limit_name, limit, found, what)
        return found

    def over(self, limit_name: str, limit: int, found: int, what: str) -> NoReturn:
        """Raise `limit_exceeded`, naming the limit as the settings name it."""
        self.fail(
            "limit_exceeded",
            f"{what}: {found} is over the limit {limit_name} of {limit}",
            limit=limit_name,
            expected=limit,
            found=found,
        )

    def walk_strings(self, count: int) -> None:
        """Pass over `count` strings, checking that each lies in the file, without building any.

        This loop runs once per token of a vocabulary; it is written for speed: one window is walked with plain
        indices, and whatever leads out of it ends in struct.error, which asks for the next window.
        """
        unpack, limit = _U64.unpack_from, self.limits.string_bytes
        window, at = self._window, self._at
        for index in range(count):
            try:
                (length,) = unpack(window, at)
            except struct.error:
                self._at = at
                at = self._need(8, f"[{index}]: length")
                window = self._window
                (length,) = unpack(window, at)
            at += 8 + length
            if length > limit:
                self._at = at - length
                what = f"[{index}]: length"
                if length > self.remaining:
                    self._truncated(length, what)
                self.over("string_bytes", limit, length, what)
        self._at = at
        if self.remaining < 0:
            # Only the last string can overshoot unnoticed: the others fail where the next length should be.
            self.fail("truncated", f"[{count - 1}]: ends {-self.remaining} bytes past the file's end of {self.size}")
        self._check(0, "")

    def strings(self, count: int) -> list[bytes]:
        """The next `count` strings, built; in the manner of `walk_strings`, for there may be as many."""
        unpack, limit = _U64.unpack_from, self.limits.string_bytes
        built: list[bytes] = []
        window, at = self._window, self._at
        for index in range(count):
            start = at + 8
            if start <= len(window):
                (length,) = unpack(window, at)
                at = start + length
                if length <= limit and at <= len(window):
                    built.append(window[start:at])
                    continue
            self._at = start - 8
            length = self.length(f"[{index}]: length", limit, "string_bytes")
            built.append(self.take(length, f"[{index}]"))
            window, at = self._window, self._at
        self._at = at
        return built

    def _need(self, length: int, what: str) -> int:
        """Make the window start here and hold `length` bytes; answers the index to read at."""
        self._check(length, what)
        position = self.position
        size = max(length, _WINDOW if position else _FIRST_WINDOW)
        self._window = self._read(position, min(size, self.size - position))
        self._base, self._at = position, 0
        return 0

    def _check(self, length: int, what: str) -> None:
        if length > self.remaining:
            self._truncated(length, what)
        limit = self.limits.header_bytes
        if self.position + length > limit:
            self.over("header_bytes", limit, self.position + length, f"{what}: header end")

    def _truncated(self, length: int, what: str) -> NoReturn:
        remaining = max(self.remaining, 0)
        self.fail(
            "truncated",
            f"{what}: {length} bytes at {self.position} run past the file's end of {self.size}",
            expected=length,
            found=remaining,
        )
