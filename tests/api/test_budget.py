"""What answers may hold together, and that clients that never read hold no more."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from app.api.budget import SMALL_BYTES, Budget, Share
from app.errors import BusyError
from tests.api.test_app import require_problem
from tests.api.test_downloads import NAME, large, status
from tests.builders import build, llama_keys, llama_tensors
from tests.cli.test_connections import connected
from tests.daemon import Daemon, running_daemon

MIB = 1 << 20
ROWS = 1 << 17  # of 64 values: 32 MiB of float32
IDLE = 12
WIDE = 16_000  # texts of 1000 characters


def test_a_budget_takes_what_fits() -> None:
    """Large answers have three quarters of it, small ones all; what is given back can be taken again."""
    budget = Budget(16 * MIB)
    first, second, small = Share(budget), Share(budget), [Share(budget) for _ in range(4)]
    first.take(12 * MIB)
    with pytest.raises(BusyError) as full:
        second.take(2 * MIB)
    assert ("answers_full", 2 * MIB, 16 * MIB) == (
        full.value.code,
        full.value.facts["needed_bytes"],
        full.value.facts["limit_bytes"],
    )
    for one in small:
        one.take(SMALL_BYTES)
    with pytest.raises(BusyError):
        Share(budget).take(1)
    for share in (first, first, second, *small):
        share.give_back()
    assert 0 == budget.held_bytes


def test_one_answer_alone_is_never_too_large() -> None:
    """A budget smaller than an answer lets it through when nothing else is under way."""
    budget = Budget(1)
    budget.take(MIB)
    with pytest.raises(BusyError):
        budget.take(1)
    budget.give_back(MIB)
    budget.take(2 * MIB)


def test_an_answer_that_grows_is_judged_by_all_it_holds() -> None:
    """What is taken bit by bit is a large answer as what is taken at once, and alone it is never too large."""
    budget = Budget(16 * MIB)
    growing, small = Share(budget), Share(budget)
    for _ in range(20):
        growing.take(SMALL_BYTES)
    growing.give_back()
    small.take(SMALL_BYTES)
    for _ in range(11):
        growing.take(SMALL_BYTES)
    with pytest.raises(BusyError):
        growing.take(SMALL_BYTES)
    Share(budget).take(SMALL_BYTES)


def test_many_threads_leave_nothing_behind() -> None:
    """Whoever takes and gives back at once with others never holds more than there is, and in the end nothing."""
    budget = Budget(8 * MIB)

    def take(number: int) -> bool:
        share = Share(budget)
        try:
            share.take((number % 5 + 1) * MIB)
        except BusyError:
            return False
        held = budget.held_bytes
        share.give_back()
        return held <= 8 * MIB

    with ThreadPoolExecutor(8) as pool:
        assert any(pool.map(take, range(500)))
    assert 0 == budget.held_bytes


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that holds 128 MiB of answers."""
    root = tmp_path_factory.mktemp("models")
    large(root / "m.gguf", MIB)
    wide = {f"wide.{number}": f"{number:05}" * 200 for number in range(WIDE)}
    build(root / "wide.gguf", {**llama_keys(1), **wide}, llama_tensors(1))
    flags = (
        "--model-roots",
        str(root),
        "--max-answers-bytes",
        "128MiB",
        "--max-body-bytes",
        "8MiB",
        "--log-level",
        "warning",
    )
    with running_daemon(*flags) as running:
        yield running


@pytest.fixture
def place(daemon: Daemon) -> Iterator[str]:
    """The place of a ready handle."""
    body = {"model": "m.gguf", "devices": ["host"], "load_mode": "mmap"}
    response = httpx.post(f"{daemon.url}/v1/handles", json=body, headers={"Prefer": "wait=30"}, timeout=40)
    assert 200 == response.status_code, response.text
    yield f"/v1/handles/{response.json()['id']}"
    httpx.delete(f"{daemon.url}/v1/handles/{response.json()['id']}")


def never_read(daemon: Daemon, request: bytes, stack: ExitStack) -> socket.socket:
    """A client that asks and does not read on; what it has got so far."""
    client = connected(daemon)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    client.sendall(request)
    stack.enter_context(client)
    return client


def asking(place: str, count: int) -> bytes:
    """The request for so many rows."""
    body = json.dumps({"tokens": [1] * count, "format": "npy"}).encode()
    head = f"POST {place}/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_embeddings_that_nobody_reads_are_bounded(daemon: Daemon, place: str) -> None:
    """Twelve clients that never read their 32 MiB hold three of them; the others are told to come back; all ends."""
    httpx.post(f"{daemon.url}{place}/embeddings", json={"tokens": [1]}).raise_for_status()
    before = status(daemon, "RssAnon")
    with ExitStack() as clients:
        got = [never_read(daemon, asking(place, ROWS), clients).recv(12) for _ in range(IDLE)]
        assert {b"HTTP/1.1 200": 3, b"HTTP/1.1 503": IDLE - 3} == {one: got.count(one) for one in got}
        refused = httpx.post(f"{daemon.url}{place}/embeddings", json={"tokens": [1] * ROWS, "format": "npy"})
        require_problem(refused, 503, "answers_full")
        assert "1" == refused.headers["retry-after"]
        assert 200 == httpx.post(f"{daemon.url}{place}/embeddings", json={"tokens": [1, 2]}).status_code
        assert status(daemon, "RssAnon") - before < 160 << 10
        assert "released" == httpx.delete(f"{daemon.url}{place}").json()["state"]
    until = time.monotonic() + 10
    while status(daemon, "RssAnon") - before > 24 << 10 and time.monotonic() < until:
        time.sleep(0.05)
    assert status(daemon, "RssAnon") - before <= 24 << 10


def test_what_ended_can_be_asked_for_again(daemon: Daemon, place: str) -> None:
    """An answer that was read, refused or broken off holds nothing afterwards, so the same can be had many times."""
    for tokens, expected in (([1] * ROWS, 200), ([1] * ROWS, 200), ([1 << 40], 400), ([1] * ROWS, 200)):
        answer = httpx.post(f"{daemon.url}{place}/embeddings", json={"tokens": tokens, "format": "npy"}, timeout=30)
        assert expected == answer.status_code
        with connected(daemon, asking(place, ROWS)) as client:
            assert client.recv(12)


def test_more_than_an_answer_may_hold_is_refused_with_how_to_ask(daemon: Daemon, place: str) -> None:
    """A wish for more than 256 MiB names the limit and how many tokens to ask for at a time; so many are answered."""
    problem = require_problem(
        httpx.post(f"{daemon.url}{place}/embeddings", json={"tokens": [1] * (8 * ROWS + 1)}), 400, "bad_request"
    )
    assert (256 * MIB, 8 * ROWS) == (problem["limit_bytes"], problem["max_tokens"])
    assert f"ask for {8 * ROWS} at a time" in problem["detail"]
    body = {"tokens": [1] * problem["max_tokens"], "format": "npy"}
    whole = httpx.post(f"{daemon.url}{place}/embeddings", json=body, timeout=30)
    assert (200, 256 * MIB + 128) == (whole.status_code, len(whole.content))
    assert "dequantise;dur=" in whole.headers["server-timing"]


def test_tensors_that_nobody_reads_are_bounded(daemon: Daemon, place: str) -> None:
    """Twelve downloads of 256 MiB that nobody reads hold a piece of them each."""
    httpx.get(f"{daemon.url}{place}/tensors/{NAME}/data", headers={"Range": "bytes=0-9"}).raise_for_status()
    before = status(daemon, "RssAnon")
    asked = f"GET {place}/tensors/{NAME}/data HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with ExitStack() as clients:
        for _ in range(IDLE):
            assert b"HTTP/1.1 200" == never_read(daemon, asked, clients).recv(12)
        time.sleep(0.5)
        assert status(daemon, "RssAnon") - before < 64 << 10


def test_many_downloads_that_nobody_reads_are_told_to_come_back(daemon: Daemon, place: str) -> None:
    """However many clients ask for bytes or values and do not read, what they hold together is within the budget."""
    before = status(daemon, "RssAnon")
    with ExitStack() as clients:
        got = []
        for number in range(60):
            query = "?dtype=f32" if number % 2 else ""
            asked = f"GET {place}/tensors/{NAME}/data{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            got.append(never_read(daemon, asked, clients).recv(12))
        assert {b"HTTP/1.1 200", b"HTTP/1.1 503"} == {*got}
        assert 10 < got.count(b"HTTP/1.1 200") < 40
        small = {"Range": "bytes=0-99"}
        assert 206 == httpx.get(f"{daemon.url}{place}/tensors/{NAME}/data", headers=small).status_code
        assert status(daemon, "RssAnon") - before < 160 << 10
    time.sleep(0.2)
    whole = {"Range": f"bytes=0-{8 * MIB - 1}"}
    assert 8 * MIB == len(httpx.get(f"{daemon.url}{place}/tensors/{NAME}/data", headers=whole).content)


def test_json_that_nobody_reads_is_bounded(daemon: Daemon) -> None:
    """Twelve clients that never read 16 MiB of metadata hold what there is for them; all ends when they leave.

    The others are told to come back, small answers are still given, and what was given back is there for all again.
    """
    url = f"{daemon.url}/v1/files/wide.gguf"
    whole = httpx.get(url, timeout=30)
    metadata = whole.json()["metadata"]
    assert f"{WIDE - 1:05}" * 200 == next(one["value"] for one in metadata if one["key"] == f"wide.{WIDE - 1}")
    nbytes = len(whole.content)
    assert ("no-store", "application/json", str(nbytes)) == tuple(
        whole.headers[name] for name in ("cache-control", "content-type", "content-length")
    )
    fit = 96 * MIB // nbytes
    before = status(daemon, "RssAnon")
    asked = b"GET /v1/files/wide.gguf HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(2):
        with ExitStack() as clients:
            got = [never_read(daemon, asked, clients).recv(12) for _ in range(IDLE)]
            assert {b"HTTP/1.1 200": fit, b"HTTP/1.1 503": IDLE - fit} == {one: got.count(one) for one in got}
            refused = httpx.get(url, timeout=30)
            require_problem(refused, 503, "answers_full")
            assert "1" == refused.headers["retry-after"]
            assert 200 == httpx.get(f"{daemon.url}/v1/files").status_code
            assert status(daemon, "RssAnon") - before < 160 << 10
        until = time.monotonic() + 10
        while httpx.get(url, timeout=30).status_code == 503 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)  # the others' connections are seen to be closed about now, too
    assert whole.content == httpx.get(url, timeout=30).content
