"""Where the synchronous core runs: threads in pools of their own, so that one kind of call cannot starve another.

A release may wait for its load to give up, and a plan of a huge model takes its time; neither may keep a status
waiting. Liveness uses no pool at all.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeVar

import anyio
from anyio import to_thread

T = TypeVar("T")


class Pool(Enum):
    """The kinds of calls."""

    VIEW = "view"
    PROBE = "probe"
    SUBMIT = "submit"
    PLAN = "plan"
    RELEASE = "release"
    READ = "read"
    ROWS = "rows"
    FILES = "files"
    SEND = "send"


THREADS: Final = {
    Pool.VIEW: 4,
    Pool.PROBE: 2,
    Pool.SUBMIT: 4,  # looks at the model's path, which may lie on a slow file system
    Pool.PLAN: 2,  # busy work: more threads than cores only make all of them late
    Pool.RELEASE: 32,  # these wait, they do not work
    Pool.READ: 4,  # a download takes its turn again for each piece
    Pool.ROWS: 2,  # busy work, like plans
    Pool.FILES: 2,  # headers are read and understood here, for plans of nobody
    Pool.SEND: 1,  # hands out pieces that are made already
}
"""How many calls of a kind run at a time; more wait their turn."""


class Workers:
    """The pools of one application."""

    def __init__(self) -> None:
        self._limiters = {pool: anyio.CapacityLimiter(threads) for pool, threads in THREADS.items()}

    async def run(self, pool: Pool, call: Callable[[], T]) -> T:
        """What `call` returns, run in a thread of `pool`; its exceptions pass through."""
        return await to_thread.run_sync(call, limiter=self._limiters[pool])
