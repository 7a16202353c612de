"""Requests that are broken off because the daemon ends: they still get an answer that says so."""

import asyncio
import logging
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.answers import problem_answer
from app.errors import BusyError
from app.modelfile.text import shown

_log: Final = logging.getLogger("ggufd.http")


class Leaving:
    """ASGI middleware: the server cancels a request only when it stops, and then this answers `shutting_down`.

    An answer that has begun cannot become another; it ends where it is, which the client sees as such.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        begun = False

        async def watching(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watching)
        except asyncio.CancelledError:  # nothing waits for this task, so nobody misses the cancellation
            if begun:
                _log.warning("answer to %s broken off: the daemon stops", shown(scope["path"]))
                return
            refusal = BusyError("the daemon is shutting down", code="shutting_down", retry_after_seconds=1.0)
            await problem_answer(refusal, headers={"Connection": "close"})(scope, receive, send)
