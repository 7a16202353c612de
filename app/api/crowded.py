"""What a client gets that is one too many: a refusal, unless it asks whether the daemon is alive."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.answers import problem_answer
from app.api.framing import in_origin_form
from app.errors import BusyError

PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})


def only_probes(app: ASGIApp) -> ASGIApp:
    """The application as it is served on a connection too many: 503 `too_many_connections` to all but probes."""

    async def crowded(scope: Scope, receive: Receive, send: Send) -> None:
        if in_origin_form(scope)["path"] in PROBES:
            await app(scope, receive, send)
            return
        refusal = BusyError(
            "more clients are connected than the daemon takes", code="too_many_connections", retry_after_seconds=1.0
        )
        await problem_answer(refusal, headers={"Connection": "close"})(scope, receive, send)

    return crowded
