"""A few threads that take work in the order it came: the load queue, and the one that gives memory back."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_log: Final = logging.getLogger("ggufd.crew")
Item = TypeVar("Item")


class Crew(Generic[Item]):
    """`size` threads that call `work` on each item offered. At most `limit` items wait beyond what idle threads take.

    `work` must not raise; if it does, the fault is logged and the thread goes on. Its lock is held only for moments
    and nothing is called under it, so any other lock may be held around it.
    """

    def __init__(self, name: str, size: int, limit: int, work: Callable[[Item], None]) -> None:
        """Start the threads; `close` and `join` end them."""
        self._limit = limit
        self._work = work
        self._items: deque[Item] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._idle = size
        self._threads = [
            threading.Thread(target=self._labour, name=f"ggufd-{name}-{number}", daemon=True) for number in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._items)

    @property
    def alive(self) -> bool:
        """Whether every thread is there to take work."""
        return all(thread.is_alive() for thread in self._threads)

    def offer(self, item: Item) -> bool:
        """Let `item` wait for a thread; False if it must not, because too many wait or the crew has closed."""
        with self._wake:
            if self._closed or len(self._items) >= self._limit + self._idle:
                return False
            self._items.append(item)
            self._wake.notify()
            return True

    def withdraw(self, item: Item) -> bool:
        """Take a waiting item back; False if it does not wait (any more)."""
        with self._wake:
            try:
                self._items.remove(item)
            except ValueError:
                return False
            return True

    def close(self) -> None:
        """Take no more items; threads end when those that wait are done."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def join(self, deadline_seconds: float) -> bool:
        """Wait for the threads of a closed crew to end; whether they all did."""
        until = time.monotonic() + deadline_seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _labour(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._items or self._closed)
                if not self._items:
                    return
                item = self._items.popleft()
                self._idle -= 1
            try:
                self._work(item)
            except Exception:
                _log.exception("work ended in an error nobody caught")
            finally:
                del item  # an idle thread must not keep the last load's values alive
                with self._wake:
                    self._idle += 1
