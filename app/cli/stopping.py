"""The end of a process that must not outlive its time, and that ends with 0 however often it is told to stop.

Threads that are stuck (in a file system that does not answer, say) keep a process for ever, and a signal that comes
late in a shutdown meets the default handler and ends it with another code. Both are kept off here.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

HANDLED: Final = (signal.SIGINT, signal.SIGTERM)
AT_ONCE_SECONDS: Final = 0.5
"""How long a process that is to end at once may take: clients that wait are told why they get nothing."""
TOO_LONG: Final = "not everything was given back within shutdown_seconds"
TOLD_TWICE: Final = "told to stop at once; what is left is the operating system's"
_FLUSH_SECONDS: Final = 0.5  # whoever reads our output may have stopped to
_POLL_SECONDS: Final = 0.02


class Stopping:
    """What signals do to this process: the first begins the end, a second SIGINT makes it short, a third is the end.

    `begin` and `hurry` are called from a signal's handler, `begin` with the signal's name: they may only set a flag.
    From the first signal on, the process ends within `limit_seconds`, whatever its threads are at.
    """

    def __init__(self, limit_seconds: float, begin: Callable[[str], None], hurry: Callable[[], None]) -> None:
        self._limit_seconds: Final = max(limit_seconds, AT_ONCE_SECONDS)
        self._begin: Final = begin
        self._hurry: Final = hurry
        self._begun = False
        self._hurried = False
        self._limits: Final = SimpleQueue[float]()  # one handler may interrupt another within `put`

    def listen(self) -> None:
        """Take the signals over, for good: see `deafen`. Only the main thread can."""
        threading.Thread(target=self._watch, name="stopping", daemon=True).start()
        for number in HANDLED:
            signal.signal(number, self._told)

    def await_threads(self) -> None:
        """Return when no other thread keeps the process; the limit still holds."""
        while any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
            time.sleep(_POLL_SECONDS)

    @staticmethod
    def deafen() -> None:
        """Ignore the signals: what is left to do is no longer worth an exit code other than 0."""
        for number in HANDLED:
            signal.signal(number, signal.SIG_IGN)

    def end_now(self) -> None:
        """End the process with 0 and a line that says why, without waiting for any thread."""
        saying = threading.Thread(target=_say, args=(TOLD_TWICE if self._hurried else TOO_LONG,), daemon=True)
        saying.start()
        saying.join(_FLUSH_SECONDS)
        os._exit(0)

    def _told(self, number: int, _frame: FrameType | None) -> None:
        if not self._begun:
            self._begun = True
            self._limits.put(self._limit_seconds)
            self._begin(signal.Signals(number).name)
        elif number == signal.SIGINT and not self._hurried:
            self._hurried = True
            self._limits.put(AT_ONCE_SECONDS)
            self._hurry()
        elif number == signal.SIGINT:
            os._exit(0)

    def _watch(self) -> None:
        """End the process when the first limit that was set has passed."""
        limit_seconds = self._limits.get()
        until = time.monotonic() + limit_seconds
        while (left := until - time.monotonic()) > 0:
            try:
                limit_seconds = self._limits.get(timeout=left)
            except Empty:
                break
            until = min(until, time.monotonic() + limit_seconds)
        self.end_now()


def _say(why: str) -> None:
    sys.stderr.write(f"ggufd serve: {why}\n")
    sys.stderr.flush()
    sys.stdout.flush()
