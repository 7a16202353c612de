import time
from contextlib import suppress

import pytest
from fastapi import Request

from app.api.ranges import is_known, require_meant, wanted_bytes
from app.errors import RequestError

TAG = '"abc"'


def asking(*headers: tuple[str, str]) -> Request:
    """A request with these headers."""
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw})


@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=5-", 5, 100),
        ("bytes=-7", 93, 100),
        ("bytes=-1000", 0, 100),
        ("bytes=90-9999999999999999999999", 90, 100),
        ("bytes=99-99", 99, 100),
        (" Bytes = 1-2 ", 1, 3),
    ],
)
def test_one_range(text: str, start: int, stop: int) -> None:
    """First and last byte, from a byte on, or so many of the last; what lies beyond the end is cut off."""
    wanted = wanted_bytes(asking(("range", text)), 100, TAG)
    assert (start, stop, True) == (wanted.start, wanted.stop, wanted.partial)


@pytest.mark.parametrize(
    "text",
    [
        "bytes=100-",
        "bytes=-0",
        "bytes=5-4",
        "bytes=",
        "bytes=a-b",
        "bytes=-",
        "bytes=0-1,5-6",
        "bytes",
        "bytes=٠-١",
        "",
    ],
)
def test_a_range_that_cannot_be_answered(text: str) -> None:
    """A range beyond the end, one that ends before it begins, no range at all, and two of them are refused."""
    with pytest.raises(RequestError) as refused:
        wanted_bytes(asking(("range", text)) if text.isascii() else _raw(text), 100, TAG)
    assert ("range_not_satisfiable", 100) == (refused.value.code, refused.value.facts["bytes"])


def _raw(text: str) -> Request:
    return Request({"type": "http", "method": "GET", "path": "/", "headers": [(b"range", text.encode())]})


def test_two_lines_of_ranges_are_two_ranges() -> None:
    """A second `Range` line is a second range."""
    with pytest.raises(RequestError, match="one range"):
        wanted_bytes(asking(("range", "bytes=0-1"), ("range", "bytes=2-3")), 100, TAG)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("range", "lines=0-9"),),
        (("range", "bytes=0-9"), ("if-range", '"old"')),
        (("range", "bytes=0-9"), ("if-range", 'W/"abc"')),
        (("range", "bytes=0-9"), ("if-range", "Mon, 30 Nov 2026 20:00:00 GMT")),
    ],
)
def test_everything(headers: tuple[tuple[str, str], ...]) -> None:
    """No range, a range of something else, or one of an older version means all there is."""
    wanted = wanted_bytes(asking(*headers), 100, TAG)
    assert (0, 100, False) == (wanted.start, wanted.stop, wanted.partial)


def test_a_range_of_what_the_client_knows() -> None:
    """`If-Range` with the present tag lets the range stand; with an older one even a senseless range does no harm."""
    assert wanted_bytes(asking(("range", "bytes=0-9"), ("if-range", TAG)), 100, TAG).partial
    assert not wanted_bytes(asking(("range", "bytes=900-"), ("if-range", '"old"')), 100, TAG).partial


@pytest.mark.parametrize(
    ("text", "known"),
    [(TAG, True), ("*", True), ('"x", W/"abc"', True), ('"x"', False), ("abc", False), ("", False)],
)
def test_what_the_client_has(text: str, known: bool) -> None:
    """`If-None-Match` is compared weakly, with each tag of the list."""
    assert known is is_known(asking(("if-none-match", text)), TAG)
    assert not is_known(asking(), TAG)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (TAG, True),
        ("*", True),
        (f'"x", {TAG}', True),
        (f"W/{TAG}", False),
        (f"x{TAG}", False),
        ('"x"', False),
        ("abc", False),
        ("", False),
    ],
)
def test_what_the_client_means(text: str, meant: bool) -> None:
    """`If-Match` is compared strongly, with each tag of the list; without it, anything is meant."""
    require_meant(asking(), TAG)
    if meant:
        require_meant(asking(("if-match", text)), TAG)
        return
    with pytest.raises(RequestError) as refused:
        require_meant(asking(("if-match", text)), TAG)
    assert ("precondition_failed", TAG) == (refused.value.code, refused.value.facts["etag"])


@pytest.mark.parametrize("between", [" ", "\t", ",", '"', "W/", 'W/"'])
@pytest.mark.parametrize("name", ["if-match", "if-none-match", "if-range", "range"])
def test_long_headers_are_read_in_no_time(name: str, between: str) -> None:
    """A header of 60 KB, whatever it repeats, takes time in proportion to its length: all answers wait for it."""
    request = asking((name, "x" + between * 30_000 + "b"), ("range", "bytes=0-1"))
    started = time.thread_time()
    for look in (is_known, require_meant, lambda request, etag: wanted_bytes(request, 100, etag)):
        with suppress(RequestError):
            look(request, TAG)
    assert time.thread_time() - started < 0.2


def test_a_range_is_for_get_alone() -> None:
    """HEAD tells of the whole, whatever range it asks for."""
    request = Request({"type": "http", "method": "HEAD", "path": "/", "headers": [(b"range", b"bytes=5-4")]})
    assert not wanted_bytes(request, 100, TAG).partial
