"""Plan requests by the line: each answered by a plan or a problem, in order, in this one process.

A line is the body of `POST /v1/plans`; its `model` is a path, relative ones to the working directory. Nothing but the
answers goes to standard output, each written out before the next request is read.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from app.api import problems
from app.api.bodies import parse_plan
from app.api.encoding import encode_line
from app.errors import AccessError, GgufdError, NotFoundError, RequestError
from app.loading.request import check_request
from app.loading.run import World, prepare

_log = logging.getLogger("ggufd.batch")


def plan_batch(source: str, world: World, max_line_bytes: int) -> int:
    """Answer every request in the file `source`, or on standard input if it is `-`.

    Raises NotFoundError or AccessError if the file cannot be opened.
    """
    with _opened(source) as lines:
        for line in bounded_lines(lines, max_line_bytes):
            reply = _too_long(max_line_bytes) if line is None else answer(line, world)
            sys.stdout.buffer.write(encode_line(reply))
            sys.stdout.buffer.flush()
    return 0


def answer(line: bytes, world: World) -> dict[str, Any]:
    """The plan for one line, or the problem with it."""
    try:
        request = parse_plan(line)
        check_request(request, tuple(world.backends))
        return prepare(request, world).as_json()
    except GgufdError as error:
        return problems.problem(error)
    except Exception:
        _log.exception("a plan ended in an error nobody foresaw")
        return problems.unforeseen()


def bounded_lines(stream: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """The lines of `stream` that hold anything; None for one of more than `max_bytes`, which is passed over."""
    while line := stream.readline(max_bytes + 1):
        if len(line) > max_bytes and not line.endswith(b"\n"):
            while (rest := stream.readline(max_bytes)) and not rest.endswith(b"\n"):
                pass
            yield None
        elif line.strip():
            yield line


def _too_long(max_bytes: int) -> dict[str, Any]:
    error = RequestError(f"the line is longer than {max_bytes} bytes", code="payload_too_large", limit_bytes=max_bytes)
    return problems.problem(error)


@contextlib.contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = open(source, "rb")  # noqa: SIM115 -- closed below; opening alone is what may fail here
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {source!r}", code="not_found") from error
    except OSError as error:
        raise AccessError(f"{source!r} cannot be read: {error.strerror}", code="permission_denied") from error
    with stream:
        yield stream
