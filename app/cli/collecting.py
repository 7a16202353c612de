"""When Python looks for garbage: not while a command starts, and later not among what the start has made.

Imports make hardly any garbage, and looking for it takes a tenth of a daemon's start. A daemon keeps what it has
made by then until it ends; each full collection would go through all of it, with every thread waiting for longer than
a liveness probe should.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Look for no garbage meanwhile."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_what_is() -> None:
    """Look never again at what there is now; what little of it is garbage already stays, too."""
    gc.freeze()
