"""Many small pieces of a mapped file at once, copied by the kernel.

Rows of a table lie scattered over a file, and a read for each costs more than whatever is done with it. The kernel can
copy from a list of addresses in one call. It is the kernel that touches the mapped pages then, as it is when they are
populated: a page that is gone because the file was cut short is an error of the call, never a SIGBUS.
"""

import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.modelfile import libc

_AT_ONCE: Final = 1024  # UIO_MAXIOV


def gather(addresses: NDArray[np.uint64], target: NDArray[np.uint8]) -> bool:
    """Copy the bytes at each address into a row of `target` (uint8 `[len(addresses), bytes of a row]`, contiguous).

    False if the kernel could not: then nothing is known of `target`, and the file should be read instead.
    """
    width = target.shape[1]
    entries = np.empty((len(addresses), 2), np.uint64)  # struct iovec: address, length
    entries[:, 0], entries[:, 1] = addresses, width
    flat = target.reshape(-1).data
    try:
        scratch = os.memfd_create("ggufd:rows", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        for first in range(0, len(entries), _AT_ONCE):
            part = entries[first : first + _AT_ONCE]
            wanted = len(part) * width
            if libc.write_from(scratch, part.ctypes.data, len(part)) != wanted:
                return False
            if os.preadv(scratch, [flat[first * width : first * width + wanted]], 0) != wanted:
                return False
    except OSError:
        return False
    finally:
        os.close(scratch)
    return True
