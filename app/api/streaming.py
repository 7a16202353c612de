"""Long answers sent piece by piece, none ahead of a client that does not read.

Bytes of tensors and rows are made on a worker's thread as they are sent; JSON is made before, as its parts may be gone
later, and holds its share of the budget meanwhile.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, Final

import anyio
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.answers import JSON, NO_STORE, raw
from app.api.budget import Share
from app.api.context import ApiContext
from app.api.encoding import encode_pieces
from app.api.workers import Pool, Workers
from app.errors import GgufdError
from app.modelfile.text import shown

_log: Final = logging.getLogger("ggufd.read")


async def json_answer(context: ApiContext, pool: Pool, render: Callable[[], Mapping[str, Any]]) -> Response:
    """A response with what `render` returns as its JSON body; rendered and encoded in `pool`.

    A body of more than a piece holds its share of the budget, from when it is made until it is sent or its client has
    gone. Raises BusyError `answers_full` where no such share is left, and whatever `render` raises.
    """
    share = Share(context.answers)

    def make() -> deque[bytes | mmap]:
        made: deque[bytes | mmap] = deque()
        for piece in encode_pieces(render()):
            made.append(_aside(piece) if made else piece)
            if len(made) > 1:  # taken as it grows: many that are made at once are bounded as well
                share.take(len(piece) + (len(made[0]) if len(made) == 2 else 0))
        return made

    try:
        made = await context.workers.run(pool, make)
    except BaseException:
        share.give_back()
        raise
    if len(made) == 1:
        return raw(made[0][:])
    headers = {**NO_STORE, "Content-Type": JSON, "Content-Length": str(sum(map(len, made)))}
    return PieceResponse(context.workers, Pool.SEND, _used_up(made), 200, headers, share.give_back)


class PieceResponse(Response):
    """An answer whose body is `pieces`, made in `pool` as they are sent.

    What fails after the headers have gone cannot be said any more: the connection is closed in the middle of the
    body, which a client sees as such. A client that goes away ends the making. `ended` is called once nothing is held
    any more, however the answer ended.
    """

    def __init__(
        self,
        workers: Workers,
        pool: Pool,
        pieces: Iterator[bytes],
        status: int,
        headers: Mapping[str, str],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(None, status, headers)
        if "content-length" not in {name.lower() for name in headers}:
            del self.headers["content-length"]  # an empty body's
        self._workers = workers
        self._pool = pool
        self._pieces = pieces
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    group.cancel_scope.cancel()

                group.start_soon(watch)
                await self._send(scope, send)
                group.cancel_scope.cancel()
        finally:
            self._pieces = iter(())
            self._ended()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            while (piece := await self._workers.run(self._pool, lambda: next(self._pieces, None))) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except GgufdError as error:
            _log.warning("answer to %s broken off: %s: %s", shown(scope["path"]), error.code, error.message)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _aside(piece: bytes) -> mmap:
    """`piece` in memory that the system has back the moment nobody holds it; malloc may keep what it is given."""
    held = mmap(-1, len(piece), flags=MAP_PRIVATE | MAP_ANONYMOUS)
    held.write(piece)
    return held


def _used_up(pieces: deque[bytes | mmap]) -> Iterator[bytes]:
    """The pieces; each is let go of as it is handed out."""
    while pieces:
        yield pieces.popleft()[:]
