"""Where tensor bytes come from: one shard's file, opened again and known to be the one that was validated."""

import errno
import fcntl
import mmap
import os
import threading
from pathlib import Path
from typing import Final, Protocol, Self

import numpy as np

from app.modelfile.filesystem import filesystem_kind, is_network
from app.modelfile.mapping import MappedRange
from app.modelfile.opening import ended_early, errno_name, read_failed, reopen, require_identity
from app.modelfile.reading import ReadInto, read_exactly
from app.modelfile.types import FileIdentity, Shard
from app.units import MIB, align_up

__all__ = ["ByteSource", "FileSource", "MappedRange", "filesystem_kind", "is_network", "open_source"]

BUFFERED: Final = "buffered"
DIRECT: Final = "direct"
_REFUSALS: Final = frozenset({errno.EINVAL, errno.EFAULT, errno.EOPNOTSUPP})
_DIRECT_CHUNK: Final = 4 * MIB
_LEAST_ALIGNMENT: Final = 4096  # what every block device takes; more where the file system asks for it


class ByteSource(Protocol):
    """A file, or what stands for one. Reads from several threads at once."""

    size: int

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset`. Raises FileError."""
        ...

    def close(self) -> None:
        """Give the descriptor back; safe to call twice."""
        ...


class FileSource:
    """One shard's open file. Reads are stateless, so any number of threads may read at once.

    `io_mode` is `direct` or `buffered`. Direct reads fall back for good when the file system refuses them, at opening
    or at any read; `fallback_reason` then has the errno's name. Closes with `with`.
    """

    def __init__(self, fd: int, path: Path, identity: FileIdentity, preadv: ReadInto = os.preadv) -> None:
        """Own `fd`, an open descriptor of the file."""
        self._fd = fd
        self._preadv = preadv
        self._blocks = threading.local()
        self._alignment = _LEAST_ALIGNMENT
        self.path: Final = path
        self.identity: Final = identity
        self.size: int = identity.size
        self.io_mode = BUFFERED
        self.fallback_reason: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def ask_direct(self) -> None:
        """Switch to direct I/O if the file system lets us; otherwise stay buffered and keep the reason."""
        try:
            block = os.fstat(self._fd).st_blksize
            self._alignment = max(_LEAST_ALIGNMENT, block if block & (block - 1) == 0 else 0)
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        except OSError as error:
            self._fall_back(errno_name(error))
        else:
            self.io_mode = DIRECT

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset`.

        Raises FileError: `read_failed`, or `file_changed` or `truncated` where the file ends before its size.
        """
        if target.format != "B" or target.ndim != 1:
            target = target.cast("B")
        if self.io_mode == DIRECT:
            done = self._read_direct(offset, target)
            offset, target = offset + done, target[done:]
        if target.nbytes:
            read_exactly(self._fd, offset, target, self.path, self.identity, self._preadv)

    def require_unchanged(self) -> None:
        """Raise FileError `file_changed` unless the open file is still what was validated."""
        require_identity(self._fd, self.identity, self.path)

    def map_range(self, offset: int, length: int) -> MappedRange:
        """Map `length` bytes at `offset`. Raises FileError `read_failed` with the fact `operation`: `mmap`."""
        return MappedRange(self._fd, self.path, self.identity, offset, length, self._preadv)

    def filesystem(self) -> str:
        """The kind of file system that holds the file."""
        return filesystem_kind(self._fd)

    def _read_direct(self, offset: int, target: memoryview) -> int:
        """Read through this thread's aligned block; answers how many bytes of `target` are filled.

        Fewer than all are filled where direct I/O turned out not to work: then the source is buffered from now on.
        """
        done, total = 0, target.nbytes
        if total == 0:
            return 0
        block = self._block()
        into = np.frombuffer(target, np.uint8)
        while done < total:
            at = offset + done
            start = at - at % self._alignment
            want = min(align_up(at + total - done - start, self._alignment), block.nbytes)
            try:
                got = self._preadv(self._fd, [block[:want]], start)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno in _REFUSALS:
                    self._fall_back(errno_name(error))
                    return done
                raise read_failed(self.path, error, start) from error
            usable = min(start + got - at, total - done)
            if usable > 0:
                np.copyto(into[done : done + usable], np.frombuffer(block, np.uint8, usable, at - start))
                done += usable
            elif got == 0 or start + got >= self.size:
                self.require_unchanged()
                raise ended_early(self.path, start + got, total - done)
            else:
                # A read that stops inside its first block can't be continued at an aligned offset.
                self._fall_back("short_read")
                return done
        return done

    def _block(self) -> memoryview:
        block: memoryview | None = getattr(self._blocks, "view", None)
        if block is None or block.nbytes < self._alignment:
            size = align_up(_DIRECT_CHUNK, self._alignment)
            block = self._blocks.view = _aligned(size, self._alignment)
        return block

    def _fall_back(self, reason: str) -> None:
        # The flag first: a thread that sees the mode reads at any offset, which a direct descriptor refuses.
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.fallback_reason = reason
        self.io_mode = BUFFERED


def _aligned(size: int, alignment: int) -> memoryview:
    """Anonymous memory of `size` bytes that starts at a multiple of `alignment`."""
    area = mmap.mmap(-1, size + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = int(np.frombuffer(area, np.uint8).ctypes.data)
    start = -address % alignment
    return memoryview(area)[start : start + size]


def open_source(shard: Shard, *, direct: bool = False, preadv: ReadInto = os.preadv) -> FileSource:
    """Open a validated shard's file again, for its tensor bytes.

    Raises FileError `file_changed` unless it is still the same file, byte count and times included (a file that is
    gone counts as changed), AccessError if it can no longer be read.
    """
    file = reopen(shard)
    source = FileSource(file.fd, shard.path, shard.identity, preadv)
    if direct:
        source.ask_direct()
    return source
