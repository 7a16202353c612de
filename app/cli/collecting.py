"""When Python looks for garbage: not while a command starts, and later not among what the start has made.

Imports make hardly any garbage, and looking for it takes a tenth of a daemon's start. A daemon keeps what it has
made by then until it ends; each full collection would go through all of it, with every thread waiting for longer than
a liveness probe should.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.units import MIB

_ROOM_BYTES: Final = 2 * MIB
_PIECE_BYTES: Final = 64
_KEEP_EVERY: Final = 4096
_kept: Final[list[bytes]] = []


@contextmanager
def no_collections() -> Iterator[None]:
    """Look for no garbage meanwhile."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_what_is() -> None:
    """Look never again at what there is now; what little of it is garbage already stays, too.

    And have room for small objects beside it: a start ends with the interpreter's memory full, and then the few that
    a load leaves in the history would soon take another piece of memory from the system, for good.
    """
    pieces = [bytes(_PIECE_BYTES) for _ in range(_ROOM_BYTES // _PIECE_BYTES)]
    _kept.extend(pieces[::_KEEP_EVERY])  # a piece of memory that has one of these in it is not given back
    gc.freeze()
