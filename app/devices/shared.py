"""Memory of our own that another process can map: a memfd, mapped here, faulted in before it is used.

A first touch costs more than the copy it is for, and inside `preadv` it would come page by page. Populating goes
through ctypes, in pieces: `mmap.madvise` keeps the interpreter lock for seconds on a large range.
"""

import ctypes
import errno
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from app.errors import CancelledLoadError
from app.modelfile import libc
from app.units import MIB

PIECE_BYTES: Final = 64 * MIB  # tens of milliseconds: how long work goes on after it was told to stop
_MADV_POPULATE_WRITE: Final = 23


class SharedMemory:
    """`nbytes` (not 0) of zeroed shared memory. Owns the descriptor and the mapping until `close`."""

    __slots__ = ("_fd", "_mapping", "nbytes")

    def __init__(self, label: str, nbytes: int) -> None:
        """Create it, not yet faulted in. Raises OSError, MemoryError or OverflowError."""
        self.nbytes: Final = nbytes
        self._fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, nbytes)
            self._mapping = mmap.mmap(self._fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            os.close(self._fd)
            raise
        with suppress(OSError):  # a kernel without huge pages for shared memory still has small ones
            self._mapping.madvise(mmap.MADV_HUGEPAGE)

    def view(self, offset: int, length: int) -> memoryview:
        """A writable view; memory cannot be closed while one lives."""
        with memoryview(self._mapping) as whole:
            return whole[offset : offset + length]

    def populate(self, threads: int, stop: threading.Event | None = None) -> None:
        """Fault everything in, on up to `threads` threads.

        Kernels before 5.14 do not know the call; then memory is faulted in when it is first written.
        Raises OSError when there is no more memory, CancelledLoadError if `stop` was set before the end.
        """
        address = self._address()
        offsets = iter(range(0, self.nbytes, PIECE_BYTES))
        lock = threading.Lock()
        failures: list[OSError] = []

        def work() -> None:
            while not failures and not (stop is not None and stop.is_set()):
                offset = _take(offsets, lock)
                if offset is None:
                    return
                try:
                    _populate_piece(address + offset, min(PIECE_BYTES, self.nbytes - offset))
                except OSError as error:
                    failures.append(error)

        extra = min(threads, -(-self.nbytes // PIECE_BYTES)) - 1
        helpers = [threading.Thread(target=work, name="ggufd-populate", daemon=True) for _ in range(extra)]
        started: list[threading.Thread] = []
        try:
            with suppress(RuntimeError):  # the system has no more threads: those that run are enough
                for helper in helpers:
                    helper.start()
                    started.append(helper)
            work()
        finally:
            for helper in started:
                helper.join()
        serious = [failure for failure in failures if failure.errno != errno.EINVAL]
        if serious:
            raise serious[0]
        if stop is not None and stop.is_set():
            raise CancelledLoadError("cancelled while memory was being allocated")

    def lock(self, stop: threading.Event | None = None) -> str | None:
        """Pin everything, in pieces; None, or the errno's name if the system refuses (then nothing stays pinned)."""
        address, at, refused = self._address(), 0, None
        while at < self.nbytes and refused is None:
            piece = min(PIECE_BYTES, self.nbytes - at)
            if stop is not None and stop.is_set():
                refused = "ECANCELED"
                break
            try:
                libc.lock(address + at, piece)
                at += piece
            except OSError as error:
                refused = errno.errorcode.get(error.errno or 0, "unknown")
        if refused is not None and at:
            libc.unlock(address, at)
        return refused

    def close(self) -> bool:
        """Unmap and close. False, and nothing done, while a view lives; safe to call twice."""
        try:
            self._mapping.close()
        except BufferError:
            gc.collect()  # a view may hang in a cycle, such as an exception that knows its own frame
            try:
                self._mapping.close()
            except BufferError:
                return False
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        return True

    def _address(self) -> int:
        first = ctypes.c_char.from_buffer(self._mapping)
        return ctypes.addressof(first)


def _take(offsets: Iterator[int], lock: threading.Lock) -> int | None:
    with lock:
        return next(offsets, None)


def _populate_piece(address: int, nbytes: int) -> None:
    """Fault a piece in; a call that a signal or a moment's shortage interrupted is made again. Raises OSError."""
    while True:
        try:
            return libc.advise(address, nbytes, _MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno not in (errno.EINTR, errno.EAGAIN):
                raise
