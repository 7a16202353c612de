"""Plan requests by the line: each answered by a plan or a problem, in order, in this one process.

A line is the body of `POST /v1/plans`; its `model` is a path, relative ones to the working directory. Blank lines are
passed over; a problem has the number of its line, counted from 1. Nothing but the answers goes to standard output, each
written out before the next request is read.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from app.api import problems
from app.api.bodies import parse_plan
from app.api.encoding import encode_line
from app.cli.files import cannot_read
from app.errors import GgufdError, RequestError
from app.loading.request import check_request
from app.loading.run import World, prepare

_log = logging.getLogger("ggufd.batch")


def plan_batch(source: str, world: World, max_line_bytes: int) -> int:
    """Answer every request in the file `source`, or on standard input if it is `-`.

    Raises NotFoundError, AccessError or FileError if the file cannot be read.
    """
    with _opened(source) as lines:
        for number, line in bounded_lines(lines, max_line_bytes):
            reply = _too_long(max_line_bytes) if line is None else answer(line, world)
            if "tensors" not in reply:
                reply["line"] = number
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


def bounded_lines(stream: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines of `stream` that hold anything, with their numbers; None for one of more than `max_bytes`."""
    number = 0
    while line := _read_line(stream, max_bytes + 1):
        number += 1
        if len(line) > max_bytes and not line.endswith(b"\n"):
            while (rest := _read_line(stream, max_bytes)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif line.strip():
            yield number, line


def _read_line(stream: BinaryIO, most: int) -> bytes:
    try:
        return stream.readline(most)
    except OSError as error:
        raise cannot_read("the batch", error) from error


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
    except OSError as error:
        raise cannot_read(repr(source), error) from error
    with stream:
        yield stream
