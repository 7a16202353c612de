"""Who is in a model's memory right now: reads that are under way, and the release that waits for them.

A read takes the memory for one piece at a time, a megabyte or a gather of rows, never for a whole download. So memory
cannot vanish under a read, and a release waits milliseconds for it: the next piece of a longer read finds the model
gone and says so.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import ConflictError


class Uses:
    """The uses of one model's memory. Thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._under_way = 0
        self._ended = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the memory for as long as this lasts: a short while. Raises ConflictError `not_resident` after `end`."""
        with self._turn:
            if self._ended:
                raise ConflictError("the handle was released while its model was being read", code="not_resident")
            self._under_way += 1
        try:
            yield
        finally:
            with self._turn:
                self._under_way -= 1
                self._turn.notify_all()

    def end(self) -> None:
        """Let no use begin any more, and return when those under way have ended."""
        with self._turn:
            self._ended = True
            self._turn.wait_for(lambda: self._under_way == 0)
