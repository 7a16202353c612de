"""What is read from a request: a bounded body, the kind of its content, preferences and keys."""

import re
from typing import Final

from fastapi import Request
from starlette.requests import ClientDisconnect

from app.errors import RequestError

MAX_KEY_CHARACTERS: Final = 255
_JSON: Final = re.compile(r"application/(?:[\w.+-]+\+)?json", re.ASCII | re.IGNORECASE)
_WAIT: Final = re.compile(r"wait\s*=\s*\"?(\d{1,9}(?:\.\d{1,9})?)\"?", re.ASCII | re.IGNORECASE)


async def json_body(request: Request, max_bytes: int) -> bytes:
    """The body of a request that says it is JSON, without reading more than `max_bytes`.

    A body must be declared as JSON: a browser asks before it sends that across sites, so no foreign page can.
    Raises RequestError: unsupported_media_type, payload_too_large, bad_request (the client broke off).
    """
    declared = request.headers.get("content-type", "").split(";")[0].strip()
    if _JSON.fullmatch(declared) is None:
        raise RequestError(
            f"the body is declared as {declared[:80]!r}, expected application/json"
            if declared
            else "the body has no content-type, expected application/json",
            code="unsupported_media_type",
            expected="application/json",
            found=declared[:80] or None,
        )
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > max_bytes):
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect as error:
        raise RequestError("the client broke off before its body ended", field=None) from error
    return bytes(body)


def wait_seconds(request: Request, at_most: float) -> float | None:
    """The N of `Prefer: wait=N`, at most `at_most`; None where the client prefers nothing that is understood.

    A preference that makes no sense is ignored, as RFC 7240 has it.
    """
    for line in request.headers.getlist("prefer"):
        for preference in line.split(","):
            match = _WAIT.fullmatch(preference.split(";")[0].strip())
            if match is not None:
                return min(float(match[1]), at_most)
    return None


def idempotency_key(request: Request) -> str | None:
    """The `Idempotency-Key`, or None. Raises RequestError for one that is empty, too long or unprintable."""
    keys = request.headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1:
        raise RequestError("Idempotency-Key: there is more than one", field="Idempotency-Key")
    key = keys[0].strip()
    if not 0 < len(key) <= MAX_KEY_CHARACTERS or not key.isprintable():
        raise RequestError(
            f"Idempotency-Key: 1 to {MAX_KEY_CHARACTERS} printable characters make a key", field="Idempotency-Key"
        )
    return key


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"the body is larger than the {max_bytes} bytes that one may have",
        code="payload_too_large",
        limit_bytes=max_bytes,
    )
