"""Answers: JSON that people can read through curl and line tools can search, and problems with their headers."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi.responses import Response

from app.api import problems
from app.errors import GgufdError

JSON = "application/json"


def encode(value: Mapping[str, Any]) -> bytes:
    """`value` as JSON, one member a line, and one line for each object of a list (a plan has a tensor per line).

    Characters that UTF-8 cannot carry (a path may hold any bytes) become JSON's own escapes.
    """
    members = ",\n".join(f"  {_dumps(key)}: {_member(member)}" for key, member in value.items())
    return f"{{\n{members}\n}}\n".encode("utf-8", "backslashreplace")


def answer(
    value: Mapping[str, Any], status: int = 200, *, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    """A response with `value` as its JSON body; never cached: everything here is a state of the moment."""
    return raw(encode(value), status, headers=headers, media_type=media_type)


def raw(
    body: bytes, status: int = 200, *, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    """A response with a body that is encoded already."""
    return Response(body, status, headers={"Cache-Control": "no-store", **(headers or {})}, media_type=media_type)


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


def _member(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        items = ",\n".join(f"    {_dumps(item)}" for item in value)
        return f"[\n{items}\n  ]"
    return _dumps(value)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
