"""How much memory answers may take together, from before they are made until they are sent or their client is gone."""

import threading
from typing import Final

from app.errors import BusyError
from app.units import MIB, human_bytes

SMALL_BYTES: Final = MIB
"""Answers of up to so much may take the last quarter too: a few huge ones shall not keep everybody else away."""


class Budget:
    """Bytes that may be held at a time. Thread-safe.

    One answer alone is never refused: how large that may be is decided elsewhere.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit: Final = limit_bytes
        self._held = 0
        self._lock: Final = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """What is held now."""
        return self._held

    def take(self, nbytes: int, *, beside: int = 0) -> None:
        """Hold `nbytes` more, for an answer that holds `beside` of them already.

        Raises BusyError `answers_full`, and holds nothing more, where that would be too many.
        """
        room = self._limit if beside + nbytes <= SMALL_BYTES else self._limit // 4 * 3
        with self._lock:
            held = self._held
            if held == beside or held + nbytes <= room:
                self._held += nbytes
                return
        raise BusyError(
            f"answers under way hold {human_bytes(held)} that their clients have not read;"
            f" {human_bytes(nbytes)} more are too many at the moment",
            code="answers_full",
            retry_after_seconds=1.0,
            needed_bytes=nbytes,
            limit_bytes=self._limit,
        )

    def give_back(self, nbytes: int) -> None:
        """Hold `nbytes` less."""
        with self._lock:
            self._held -= nbytes
            assert self._held >= 0, "more was given back than was taken"


class Share:
    """What one answer holds of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget: Final = budget
        self._nbytes = 0

    def take(self, nbytes: int) -> None:
        """Hold `nbytes` more. Raises BusyError `answers_full`."""
        self._budget.take(nbytes, beside=self._nbytes)
        self._nbytes += nbytes

    def give_back(self) -> None:
        """Hold nothing any more; safe to call twice."""
        nbytes, self._nbytes = self._nbytes, 0
        self._budget.give_back(nbytes)
