"""Answers: JSON and problems, with their headers."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi.responses import Response

from app.api import problems
from app.api.encoding import encode
from app.errors import GgufdError

JSON = "application/json"
NO_STORE: Final = {"Cache-Control": "no-store"}


def answer(
    value: Mapping[str, Any], status: int = 200, *, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    """A response with `value` as its JSON body; never cached: everything here is a state of the moment."""
    return raw(encode(value), status, headers=headers, media_type=media_type)


def raw(
    body: bytes, status: int = 200, *, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    """A response with a body that is encoded already."""
    return Response(body, status, headers={**NO_STORE, **(headers or {})}, media_type=media_type)


def problem_answer(
    error: GgufdError,
    *,
    instance: str | None = None,
    headers: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Response:
    """`error` as a problem response, with `Retry-After` where it may help; `facts` are fields of the answer alone."""
    body = problems.problem(error, instance=instance) | dict(facts or {})
    retry = problems.retry_after_seconds(error)
    waiting = {} if retry is None else {"Retry-After": str(retry)}
    return answer(body, body["status"], headers={**waiting, **(headers or {})}, media_type=problems.MEDIA_TYPE)
