"""Which bytes of a resource a request wants, and on what condition (RFC 9110, sections 13 and 14).

`Range` and `If-Range`, `If-Match` and `If-None-Match`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from app.errors import RequestError

_UNIT: Final = re.compile(r"\s*([!#$%&'*+.^_`|~0-9a-z-]+)\s*=(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_ONE: Final = re.compile(r"\s*(?:(\d{1,40})-(\d{1,40})?|-(\d{1,40}))\s*", re.ASCII)
_TAG: Final = re.compile(r'(W/)?("[^"]*")')


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Bytes `[start, stop)`; `partial` says that they were asked for as a range."""

    start: int
    stop: int
    partial: bool


def wanted_bytes(request: Request, nbytes: int, etag: str) -> Wanted:
    """The bytes that a request wants of a resource of `nbytes`, now called `etag`.

    A range in another unit than bytes is ignored, and so is every range where `If-Range` names something older, and
    with any other method than GET.
    Raises RequestError `range_not_satisfiable`: for a range that makes no sense or lies beyond the end, and for more
    than one.
    """
    everything = Wanted(start=0, stop=nbytes, partial=False)
    lines = request.headers.getlist("range")
    unit = _UNIT.fullmatch(lines[0]) if lines else None
    if request.method != "GET" or not lines or (unit is not None and unit[1].lower() != "bytes"):
        return everything
    condition = request.headers.get("if-range")
    if condition is not None and condition.strip() != etag:  # a date, too: there are none to compare it with
        return everything
    found = _ONE.fullmatch(unit[2]) if unit is not None and len(lines) == 1 else None
    if found is None:
        raise _refused(
            f"Range: {', '.join(lines)[:80]!r} is not one range of bytes (bytes=0-99, bytes=100-, bytes=-100)", nbytes
        )
    if found[3] is not None:
        start, stop = max(0, nbytes - int(found[3])), nbytes
    else:
        start, stop = int(found[1]), nbytes if found[2] is None else min(int(found[2]) + 1, nbytes)
        if found[2] is not None and int(found[2]) < start:
            raise _refused(f"Range: {found[0].strip()} ends before it begins", nbytes)
    if start >= stop:
        raise _refused(f"Range: {found[0].strip()} lies beyond the {nbytes} bytes there are", nbytes)
    return Wanted(start=start, stop=stop, partial=True)


def is_known(request: Request, etag: str) -> bool:
    """Whether the client says, with `If-None-Match`, that it has what is called `etag` already."""
    return any(tag in ("*", etag) for _, tag in _tags(request.headers.getlist("if-none-match")))


def require_meant(request: Request, etag: str) -> None:
    """Raise RequestError `precondition_failed` if the request's `If-Match` does not name `etag`.

    A tag that is marked as weak names nothing here: the bytes must be the very same.
    """
    lines = request.headers.getlist("if-match")
    if lines and not any(tag in ("*", etag) and not weak for weak, tag in _tags(lines)):
        raise RequestError(
            f"If-Match: the bytes are now called {etag}", code="precondition_failed", field="If-Match", etag=etag
        )


def _tags(lines: Iterable[str]) -> Iterator[tuple[bool, str]]:
    """The tags of a header's lines, and whether each is weak; `*` is one. What is no tag is passed over."""
    for line in lines:
        for part in line.split(","):  # no tag of ours has a comma in it
            word = part.strip()
            found = _TAG.fullmatch(word)
            if word == "*" or found is not None:
                yield (False, word) if found is None else (found[1] is not None, found[2])


def _refused(message: str, nbytes: int) -> RequestError:
    return RequestError(message, code="range_not_satisfiable", field="Range", bytes=nbytes)
