"""What a request must be before any route sees it: its target in one form, its length told in one way (RFC 9112)."""

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.answers import problem_answer
from app.errors import RequestError

_ABSOLUTE: Final = re.compile(rb"https?://[^/]*", re.IGNORECASE)


def in_origin_form(scope: Scope) -> Scope:
    """The scope of a request whose target may be in absolute form (`GET http://host/path`), as if it were not."""
    absolute = _ABSOLUTE.match(scope["raw_path"])
    if absolute is None:
        return scope
    raw_path = scope["raw_path"][absolute.end() :] or b"/"
    return {**scope, "raw_path": raw_path, "path": unquote(raw_path.decode("ascii", "replace"))}


class Framing:
    """ASGI middleware: a target in absolute form is served as its path.

    A request that tells its length twice, by `Content-Length` and by chunks, is refused and its connection closed:
    what stands between may have believed the other length, and then the next request is not where it seems to be.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            scope.update(in_origin_form(scope))
            told = {name for name, _ in scope["headers"]}
            if {b"content-length", b"transfer-encoding"} <= told:
                refusal = RequestError(
                    "the request tells its length twice, by Content-Length and by Transfer-Encoding",
                    field="Transfer-Encoding",
                )
                await problem_answer(refusal, headers={"Connection": "close"})(scope, receive, send)
                return
        await self._app(scope, receive, send)
