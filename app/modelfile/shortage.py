"""When the machine is short of something, it is no fault of a file: the errors that say so, from the system's own."""

import errno
from typing import Final

from app.errors import BusyError, CapacityError, GgufdError

_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


def shortage(error: BaseException, what: str) -> GgufdError | None:
    """The machine's want that made `what` (a part of a sentence) fail; None if `error` is of another kind.

    No memory: CapacityError `insufficient_memory`. No file descriptors: BusyError `out_of_descriptors`.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return CapacityError(f"{what} failed: the system has no memory left for it", devices=[])
    if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
        return BusyError(
            f"{what} failed: {error.strerror or 'no more file descriptors'}",
            code="out_of_descriptors",
            retry_after_seconds=1.0,
            found=errno.errorcode[error.errno or 0],
        )
    return None
