"""The few system calls that Python lacks or makes with the interpreter lock held; ctypes releases it for each."""

import ctypes
import errno
import os
from collections import Counter
from typing import Final

PROT_READ: Final = 1
MAP_SHARED: Final = 1
MADV_WILLNEED: Final = 3
MADV_POPULATE_READ: Final = 22
PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_libc: Final = ctypes.CDLL(None, use_errno=True)
_size_t, _void_p, _int = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
_libc.mmap.argtypes = [_void_p, _size_t, _int, _int, _int, ctypes.c_longlong]
_libc.mmap.restype = _void_p
for _name in ("munmap", "mlock", "munlock"):
    getattr(_libc, _name).argtypes = [_void_p, _size_t]
_libc.madvise.argtypes = [_void_p, _size_t, _int]
_libc.mincore.argtypes = [_void_p, _size_t, _void_p]
_libc.pwritev.argtypes = [_int, _void_p, _int, ctypes.c_longlong]
_libc.pwritev.restype = ctypes.c_ssize_t
_libc.fstatfs.argtypes = [_int, ctypes.c_char_p]
_libc.fstatfs.restype = _int
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_STATFS_BYTES: Final = 256  # struct statfs is 120 bytes where we run; more room does no harm


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def map_file(fd: int, offset: int, length: int) -> int:
    """mmap of a file for reading, shared; answers the address. `offset` is a multiple of the page. Raises OSError."""
    address: int | None = _libc.mmap(None, length, PROT_READ, MAP_SHARED, fd, offset)
    if address is None or address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap: {os.strerror(number)}")
    return address


def unmap(address: int, length: int) -> None:
    """munmap. Raises OSError."""
    _checked(_libc.munmap(address, length), "munmap")


def advise(address: int, length: int, advice: int) -> None:
    """madvise. Raises OSError."""
    _checked(_libc.madvise(address, length, advice), "madvise")


def resident_pages(address: int, length: int) -> int:
    """mincore: how many pages of the range are in memory. `address` is a multiple of the page. Raises OSError."""
    states = ctypes.create_string_buffer(-(-length // PAGE))
    _checked(_libc.mincore(address, length, ctypes.addressof(states)), "mincore")
    # of each byte only the lowest bit means anything
    return sum(count for state, count in Counter(states.raw[: -(-length // PAGE)]).items() if state & 1)


def lock(address: int, length: int) -> None:
    """mlock. Raises OSError."""
    _checked(_libc.mlock(address, length), "mlock")


def unlock(address: int, length: int) -> None:
    """munlock. Raises OSError."""
    _checked(_libc.munlock(address, length), "munlock")


def write_from(fd: int, entries: int, count: int) -> int:
    """pwritev at offset 0, from the `count` iovecs at the address `entries`; answers the bytes written.

    A place that cannot be read ends the write early. Raises OSError.
    """
    written: int = _libc.pwritev(fd, entries, count, 0)
    if written < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"pwritev: {os.strerror(number)}")
    return written


def filesystem_magic(fd: int) -> int:
    """`f_type` of the file system that holds the open file (an O_PATH descriptor will do). Raises OSError."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    while _libc.fstatfs(fd, buffer) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, f"fstatfs: {os.strerror(number)}")
    return int.from_bytes(buffer.raw[:8], "little") & 0xFFFF_FFFF
