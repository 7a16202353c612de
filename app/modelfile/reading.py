"""Reading exactly what was asked for: short reads, interruptions and files that end too early, in one place."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from app.modelfile.opening import ended_early, read_failed, require_identity
from app.modelfile.types import FileIdentity
from app.units import GIB

ReadInto = Callable[[int, Sequence[memoryview], int], int]
"""`preadv(fd, buffers, offset) -> bytes read`: os.preadv, or a test's impatient version of it."""

_LARGEST: Final = GIB  # one call moves at most 2,147,479,552 bytes; asking for less keeps pages whole


def read_exactly(
    fd: int, offset: int, target: memoryview, path: Path, identity: FileIdentity, preadv: ReadInto = os.preadv
) -> None:
    """Fill `target` from byte `offset` of the open file, which was `identity` when its size was believed.

    Raises FileError: `read_failed`, or `file_changed` or `truncated` where the file ends too early.
    """
    if target.format != "B" or target.ndim != 1:
        target = target.cast("B")
    done, total = 0, target.nbytes
    while done < total:
        try:
            got = preadv(fd, [target[done : done + _LARGEST]], offset + done)
        except InterruptedError:
            continue
        except OSError as error:
            raise read_failed(path, error, offset + done) from error
        if got == 0:
            require_identity(fd, identity, path)
            raise ended_early(path, offset + done, total - done)
        done += got
