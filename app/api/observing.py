"""How long each request took, by method, route and status: labels from closed sets only."""

import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ObserveRequest = Callable[[str, str, int, float], None]
"""Called once per request with method, route template, status and seconds."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD: Final = "other"
NO_ROUTE: Final = "none"


class Observing:
    """ASGI middleware that reports each request when its answer is complete; a crash counts as 500."""

    def __init__(self, app: ASGIApp, observe: ObserveRequest) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and time it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        started = time.monotonic()

        async def watching(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watching)
        finally:
            method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
            route = getattr(scope.get("route"), "path_format", NO_ROUTE)
            self._observe(method, route, status, time.monotonic() - started)
