"""Long answers sent piece by piece: each made on a worker's thread, none made ahead of a client that does not read."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import anyio
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.workers import Pool, Workers
from app.errors import GgufdError
from app.modelfile.text import shown

_log: Final = logging.getLogger("ggufd.read")


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
