"""How much of a file lies in the page cache: asked of the kernel over a mapping that is never touched."""

import fcntl
import os
from dataclasses import dataclass
from typing import Final

from app.modelfile import libc
from app.modelfile.opening import OpenedFile
from app.units import MIB

_WHOLE: Final = 32 * MIB  # so much is looked at page by page, which takes a millisecond or two
_WINDOW: Final = MIB // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """Pages that were looked at, and how many of them were in memory; None where the system does not say."""

    pages: int = 0
    resident: int | None = 0
    sampled: bool = False

    @property
    def fraction(self) -> float | None:
        """The part of the file that is in memory, 0 to 1; None for an empty file too."""
        return None if self.resident is None or not self.pages else self.resident / self.pages


def warmth(file: OpenedFile, budget: int = _WHOLE) -> Warmth:
    """The warmth of an open file; of one larger than `budget` bytes, windows of it that are spread evenly.

    The kernel calls every page resident to those who neither own the file nor may write to it: they learn nothing.
    """
    size = file.identity.size
    if not size:
        return Warmth()
    if not _may_know(file):
        return Warmth(resident=None)
    try:
        address = libc.map_file(file.fd, 0, size)
    except OSError:
        return Warmth(resident=None)
    try:
        pages = resident = 0
        for start, stop in _windows(size, budget):
            pages += -(-(stop - start) // libc.PAGE)
            resident += libc.resident_pages(address + start, stop - start)
    except OSError:
        return Warmth(resident=None)
    finally:
        libc.unmap(address, size)
    return Warmth(pages=pages, resident=resident, sampled=size > budget)


def joined(parts: list[tuple[int, Warmth]]) -> Warmth:
    """The warmth of several files, each with its size in bytes: what was looked at counts for the whole file."""
    known = [(size, fraction) for size, part in parts if (fraction := part.fraction) is not None]
    pages = sum(-(-size // libc.PAGE) for size, _ in known)
    if any(part.resident is None for _, part in parts):
        return Warmth(resident=None)
    resident = sum(-(-size // libc.PAGE) * fraction for size, fraction in known)
    return Warmth(pages=pages, resident=round(resident), sampled=any(part.sampled for _, part in parts))


def _windows(size: int, budget: int) -> list[tuple[int, int]]:
    """The ranges to look at, whole pages each, but for the last of the file."""
    if size <= budget:
        return [(0, size)]
    count = max(1, budget // _WINDOW)
    step = (size - _WINDOW) / max(1, count - 1)
    starts = [int(step * index) // libc.PAGE * libc.PAGE for index in range(count)]
    return [(start, min(start + _WINDOW, size)) for start in starts]


def _may_know(file: OpenedFile) -> bool:
    """Whether the kernel tells us the truth: it lets the same people ask for O_NOATIME, or those who may write."""
    flags = fcntl.fcntl(file.fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file.fd, fcntl.F_SETFL, flags | os.O_NOATIME)
    except OSError:
        try:
            return os.access(f"/proc/self/fd/{file.fd}", os.W_OK, effective_ids=True)
        except OSError:
            return False
    return True
