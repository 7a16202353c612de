"""A mapped range of a file, whose pages the daemon itself never touches: a file cut short must not become a SIGBUS."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.errors import FileError
from app.modelfile import libc
from app.modelfile.gathering import gather
from app.modelfile.opening import CONTENT_FIELDS, errno_name, read_failed, require_identity
from app.modelfile.reading import ReadInto, read_exactly
from app.modelfile.shortage import shortage
from app.modelfile.text import shown
from app.modelfile.types import FileIdentity
from app.units import MIB

_PIECE: Final = 16 * MIB  # between two looks at the stop flag; a slow disk takes a tenth of a second for it
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS})


class MappedRange:
    """Bytes `[offset, offset + nbytes)` of a file, mapped for reading. Owns a descriptor of its own; close it once.

    `address` is where byte `offset` lies (0 for an empty range, which maps nothing). Safe to use from several threads,
    except for `close`.
    """

    __slots__ = ("_fd", "_identity", "_length", "_path", "_preadv", "_start", "address", "nbytes", "offset")

    def __init__(
        self, fd: int, path: Path, identity: FileIdentity, offset: int, nbytes: int, preadv: ReadInto = os.preadv
    ) -> None:
        """Map part of the open file `fd` (which is duplicated).

        Raises FileError `read_failed` (`found` is the errno's name) if the kernel refuses, CapacityError or BusyError
        if the machine is short of something.
        """
        skipped = offset % libc.PAGE
        self._path = path
        self._identity = identity
        self._preadv = preadv
        self._length = nbytes + skipped if nbytes else 0
        self._start = 0
        self.offset: Final = offset
        self.nbytes: Final = nbytes
        self.address = 0
        self._fd = -1
        try:
            self._fd = os.dup(fd)
            if nbytes:
                self._start = libc.map_file(self._fd, offset - skipped, self._length)
                self.address = self._start + skipped
        except OSError as error:
            self.close()
            want = shortage(error, f"{shown(path)}: mapping {nbytes} bytes at {offset}")
            if want is not None:
                raise want from error
            raise FileError(
                f"{shown(path)}: mapping {nbytes} bytes at {offset} was refused: {error.strerror}",
                code="read_failed",
                file=shown(path),
                operation="mmap",
                found=errno_name(error),
            ) from error

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset` of the range, by reading the file: mapped pages stay untouched.

        Raises FileError, `file_changed` also if the file has been written to since it was validated.
        """
        assert offset + target.nbytes <= self.nbytes
        read_exactly(self._fd, self.offset + offset, target, self._path, self._identity, self._preadv)
        self._require_content()

    def read_rows(self, offset: int, rows: NDArray[np.int64], target: NDArray[np.uint8]) -> None:
        """Fill the rows of `target` (uint8, contiguous) from rows of the same width that begin at byte `offset`.

        Raises FileError, as `read_into`.
        """
        width = target.shape[1]
        assert offset + (int(rows.max(initial=-1)) + 1) * width <= self.nbytes
        if gather((rows * width + (self.address + offset)).astype(np.uint64), target):
            self._require_content()  # what follows a new end of the file reads as zeros
            return
        flat = target.reshape(-1).data
        for place, row in enumerate(rows.tolist()):
            self.read_into(offset + row * width, flat[place * width : (place + 1) * width])

    def populate(self, stop: threading.Event, progress: Callable[[int], None] | None = None) -> None:
        """Have the kernel read the range and fill the page tables, in pieces, until done or `stop` is set.

        `progress` is told the bytes of each piece. Kernels before 5.14 only get a hint to read ahead.
        Raises FileError if the file's bytes can't be had (it was cut short, or the disk failed).
        """
        advice = libc.MADV_POPULATE_READ
        skipped = self._length - self.nbytes
        at = 0
        while at < self._length and not stop.is_set():
            piece = min(_PIECE, self._length - at)
            try:
                libc.advise(self._start + at, piece, advice)
            except OSError as error:
                if error.errno in _UNSUPPORTED and advice == libc.MADV_POPULATE_READ:
                    advice = libc.MADV_WILLNEED
                    continue
                if error.errno in (errno.EAGAIN, errno.EINTR):
                    continue
                if error.errno not in _UNSUPPORTED:
                    require_identity(self._fd, self._identity, self._path)
                    raise read_failed(self._path, error, self.offset + at) from error
            at += piece
            if progress is not None:
                progress(piece if at > piece else piece - skipped)

    def lock(self, stop: threading.Event | None = None) -> str | None:
        """Pin the range in memory, in pieces; answers None, or the errno's name if the system refuses.

        Nothing stays locked after a refusal or a stop (`ECANCELED`). Unmapping unlocks.
        """
        at, refused = 0, None
        while at < self._length:
            piece = min(_PIECE, self._length - at)
            if stop is not None and stop.is_set():
                refused = "ECANCELED"
                break
            try:
                libc.lock(self._start + at, piece)
            except OSError as error:
                refused = errno_name(error)
                break
            at += piece
        if refused is not None and at:
            libc.unlock(self._start, at)
        return refused

    def _require_content(self) -> None:
        """Nobody has written to the file, which is the memory. Its name and its rights may change: it stays mapped."""
        require_identity(self._fd, self._identity, self._path, CONTENT_FIELDS)

    def close(self) -> None:
        """Unmap and close; safe to call twice."""
        start, self._start, self.address = self._start, 0, 0
        fd, self._fd = self._fd, -1
        if start:
            libc.unmap(start, self._length)
        if fd >= 0:
            os.close(fd)
