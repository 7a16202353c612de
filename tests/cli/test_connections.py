"""Many clients, and clients that say little: none of them keeps the others from being answered."""

import json
import re
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from app.cli.connections import MAX_HEADER_BYTES
from app.units import MIB
from tests.api.test_app import require_problem
from tests.builders import build, llama_keys, llama_tensors
from tests.daemon import Daemon, running_daemon

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "
WAITING = b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"


def address(daemon: Daemon) -> tuple[str, int]:
    """Where the daemon listens."""
    host, port = daemon.url.removeprefix("http://").split(":")
    return host, int(port)


def connected(daemon: Daemon, said: bytes = b"") -> socket.socket:
    """A connection on which `said` was said."""
    client = socket.create_connection(address(daemon), 10)
    client.sendall(said)
    return client


def closed(client: socket.socket, within: float) -> bool:
    """Whether the daemon closes the connection in time, without an answer."""
    client.settimeout(within)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def received(client: socket.socket) -> bytes:
    """What still comes before the connection is closed."""
    pieces = []
    with suppress(ConnectionResetError):
        while piece := client.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


def statuses(daemon: Daemon, said: bytes) -> list[int]:
    """How the daemon answers all of `said` before it closes the connection."""
    with connected(daemon, said) as client:
        return [int(found) for found in re.findall(rb"HTTP/1.1 (\d+) ", received(client))]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for the checks that leave nothing behind."""
    with running_daemon("--model-roots", str(tmp_path_factory.mktemp("models"))) as daemon:
        yield daemon


@pytest.fixture
def descriptors() -> Iterator[None]:
    """This process may have more files open than a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if wanted < 2048:
        pytest.skip(f"the test needs 2048 file descriptors, and may have {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("descriptors")
def test_nine_hundred_idle_connections_do_not_silence_the_probes(tmp_path: Path) -> None:
    """Health is answered at once beside 900 connections that say nothing or half of something; the log stays quiet."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))  # noqa: E731 -- it takes the rest by itself
    with running_daemon("--model-roots", str(tmp_path), before=limit) as daemon, ExitStack() as clients:
        for number in range(900):
            clients.enter_context(connected(daemon, HALF if number % 2 else b""))
        took = []
        for _ in range(20):
            started = time.monotonic()
            assert 200 == httpx.get(f"{daemon.url}/healthz", timeout=5).status_code
            took.append(time.monotonic() - started)
        assert max(took) < 1
    assert len("".join(daemon.log)) < 4000


def test_with_few_descriptors_the_idlest_make_room_and_the_log_stays_quiet(tmp_path: Path) -> None:
    """A process that may open 128 files still serves and loads while 300 connections are held against it."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))  # noqa: E731
    build(tmp_path / "m.gguf", llama_keys(2), llama_tensors(2))
    with running_daemon("--model-roots", str(tmp_path), before=limit) as daemon, ExitStack() as clients:
        for number in range(300):
            clients.enter_context(connected(daemon, HALF if number % 2 else b""))
        known = clients.enter_context(httpx.Client(base_url=daemon.url))
        known.get("/healthz")
        kept = known.get("/healthz").extensions["network_stream"].get_extra_info("client_addr")
        for number in range(100):
            clients.enter_context(connected(daemon, HALF if number % 2 else b""))
        again = known.get("/healthz")
        assert kept == again.extensions["network_stream"].get_extra_info("client_addr")  # strangers go first
        for _ in range(5):
            assert 200 == httpx.get(f"{daemon.url}/healthz", timeout=5).status_code
            answer = httpx.post(f"{daemon.url}/v1/handles", json={"model": "m.gguf"}, headers={"Prefer": "wait=10"})
            assert 200 == answer.status_code, answer.text
    assert "Too many open files" not in "".join(daemon.log)


def test_a_client_that_takes_its_time_is_closed(tmp_path: Path) -> None:
    """Silence, half a header however slowly it grows, and half a body end the connection; keeping alive does not."""
    with running_daemon("--model-roots", str(tmp_path), "--header-seconds", "0.6") as daemon:
        with connected(daemon) as silent, connected(daemon, HALF) as half, connected(daemon, WAITING) as body:
            assert all(closed(client, 5) for client in (silent, half, body))
        with connected(daemon, HALF) as slow:
            started = time.monotonic()
            with suppress(ConnectionResetError, BrokenPipeError):
                while time.monotonic() - started < 5:
                    slow.sendall(b"x")
                    time.sleep(0.1)
            assert time.monotonic() - started < 4
        with httpx.Client(base_url=daemon.url) as client:
            for _ in range(2):
                assert 200 == client.get("/healthz").status_code
                before = client.get("/healthz").extensions["network_stream"].get_extra_info("client_addr")
                time.sleep(1)
            assert before == client.get("/healthz").extensions["network_stream"].get_extra_info("client_addr")
    assert "Traceback" not in "".join(daemon.log)


def test_a_busy_daemon_refuses_politely_and_answers_probes(tmp_path: Path) -> None:
    """When every connection it takes has a request under way, others get 503 `too_many_connections`; probes do not."""
    with running_daemon("--model-roots", str(tmp_path), "--max-connections", "3") as daemon, ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(connected(daemon, WAITING))
        time.sleep(0.2)
        refused = httpx.get(f"{daemon.url}/v1/devices")
        require_problem(refused, 503, "too_many_connections")
        assert "1" == refused.headers["retry-after"]
        assert 200 == httpx.get(f"{daemon.url}/healthz").status_code
        with connected(daemon, b"GET http://ggufd/healthz HTTP/1.1\r\nHost: ggufd\r\n\r\n") as absolute:
            assert absolute.recv(100).startswith(b"HTTP/1.1 200 ")
        clients.close()
        time.sleep(0.2)
        assert 200 == httpx.get(f"{daemon.url}/v1/devices").status_code


def test_a_client_that_does_not_read_is_closed(tmp_path: Path) -> None:
    """An answer that nobody reads is given up; one that is read slowly is not."""
    shape = {"ff": 1 << 18}
    build(tmp_path / "wide.gguf", llama_keys(1, **shape), llama_tensors(1, **shape), seed=None)
    with running_daemon("--model-roots", str(tmp_path), "--read-seconds", "0.5") as daemon:
        body = {"model": "wide.gguf", "devices": ["host"], "load_mode": "mmap"}
        handle = httpx.post(f"{daemon.url}/v1/handles", json=body, headers={"Prefer": "wait=20"}).json()
        path = f"/v1/handles/{handle['id']}/tensors/blk.0.ffn_down.weight/data"
        asked = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        with connected(daemon, asked) as leaving:
            time.sleep(0.2)  # the daemon waits for it now
            assert leaving.recv(1000)
        time.sleep(1.2)
        assert "has read nothing" not in "".join(daemon.log)  # who is not there need not read
        with connected(daemon, asked) as lazy, connected(daemon, asked) as slow:
            for _ in range(20):
                time.sleep(0.1)
                assert slow.recv(1 << 20)
            assert len(received(lazy)) < int(httpx.head(f"{daemon.url}{path}").headers["content-length"])
    assert "has read nothing" in "".join(daemon.log)


HEADER = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
PROBE = HEADER + b"\r\n"
LAST = HEADER + b"Connection: close\r\n\r\n"
CHUNKED = HEADER + b"Transfer-Encoding: chunked\r\n\r\n"
NO_REQUESTS = (
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
    HEADER + b"X: " + b"x" * MAX_HEADER_BYTES,
    CHUNKED + b"nonsense\r\n",
)


def test_what_is_no_request_is_a_problem(daemon: Daemon) -> None:
    """Bytes that are no request are answered as everything that is wrong is, and the connection is closed."""
    for said in NO_REQUESTS:
        with connected(daemon, said) as client, client.makefile("rb") as stream:
            head, body = stream.read().split(b"\r\n\r\n", 1)
        lines = head.lower().split(b"\r\n")
        assert lines[0].startswith(b"http/1.1 400")
        assert {b"content-type: application/problem+json", b"connection: close"} <= {*lines}
        assert ("bad_request", 400) == (json.loads(body)["code"], json.loads(body)["status"])
    assert 200 == httpx.get(f"{daemon.url}/healthz").status_code
    assert "Traceback" not in "".join(daemon.log)


def test_a_large_header_is_refused_wherever_it_comes(daemon: Daemon) -> None:
    """A header has 16 KiB, complete or not, also behind other requests and behind a body that nobody awaited."""
    room = MAX_HEADER_BYTES - len(HEADER + b"X: \r\n\r\n")
    largest, large, huge = (HEADER + b"X: " + b"x" * size + b"\r\n\r\n" for size in (room, room + 1, 250_000))
    many = HEADER + b"a:\r\n" * 4096 + b"\r\n"
    unawaited = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 30000\r\n\r\n" + b"x" * 30_000
    assert [200, 200] == statuses(daemon, largest + LAST)
    for said in (large, huge, many, HEADER.replace(b"healthz", b"healthz?" + b"a=&" * 6000) + b"\r\n"):
        assert [400] == statuses(daemon, said)
        assert [200, 200, 400] == statuses(daemon, PROBE * 2 + said)
        assert [404, 200, 400] == statuses(daemon, unawaited + PROBE + said)
    with connected(daemon, large) as client:
        assert json.loads(received(client).split(b"\r\n\r\n", 1)[1])["limit_bytes"] == MAX_HEADER_BYTES


def test_what_follows_an_answer_is_neither_answered_nor_taken_without_end(daemon: Daemon) -> None:
    """After its answer the rest of a request may be wrong or endless: the connection is closed, and nothing is logged.

    As much as a body may have is taken, and the connection serves on.
    """
    with connected(daemon, CHUNKED) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"nonsense\r\n")
        assert b"HTTP/1.1" not in received(client)
    post = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with connected(daemon, post % MIB) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 404 ")
        client.sendall(b"x" * MIB + LAST)
        assert b"HTTP/1.1 200 " in received(client)
    with connected(daemon, post % (100 * MIB)) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 404 ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.sendall(b"x" * 100 * MIB)
    said = "".join(daemon.log)
    assert "Traceback" not in said
    assert "Fatal" not in said


def test_a_body_in_tiny_chunks_does_not_silence_the_probes(daemon: Daemon) -> None:
    """While a client sends its body byte by byte, as fast as it can, health is answered beside it."""
    head = b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(daemon, head) as client:
        client.setblocking(False)
        assert client.send(b"1\r\n \r\n" * 500_000) > MIB  # a second's work
        took = []
        for _ in range(3):
            started = time.monotonic()
            assert [200] == statuses(daemon, LAST)
            took.append(time.monotonic() - started)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the rest of it is lost
    assert sorted(took)[1] < 0.4, took
