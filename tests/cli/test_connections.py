"""Many clients, and clients that say little: none of them keeps the others from being answered."""

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

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


def received(client: socket.socket) -> int:
    """How many bytes still come before the connection is closed."""
    count = 0
    with suppress(ConnectionResetError):
        while piece := client.recv(1 << 20):
            count += len(piece)
    return count


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
        with connected(daemon, asked) as lazy, connected(daemon, asked) as slow:
            for _ in range(20):
                time.sleep(0.1)
                assert slow.recv(1 << 20)
            assert received(lazy) < int(httpx.head(f"{daemon.url}{path}").headers["content-length"])
    assert "has read nothing" in "".join(daemon.log)


NO_REQUESTS = (
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 66_000,
)


def test_what_is_no_request_is_a_problem(tmp_path: Path) -> None:
    """Bytes that are no request are answered as everything that is wrong is, and the connection is closed."""
    with running_daemon("--model-roots", str(tmp_path)) as daemon:
        for said in NO_REQUESTS:
            with connected(daemon, said) as client, client.makefile("rb") as stream:
                head, body = stream.read().split(b"\r\n\r\n", 1)
            lines = head.lower().split(b"\r\n")
            assert lines[0].startswith(b"http/1.1 400")
            assert {b"content-type: application/problem+json", b"connection: close"} <= {*lines}
            assert ("bad_request", 400) == (json.loads(body)["code"], json.loads(body)["status"])
        assert 200 == httpx.get(f"{daemon.url}/healthz").status_code
