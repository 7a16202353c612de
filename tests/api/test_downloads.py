"""Long answers: what they cost, and what becomes of them when one side goes away."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.client import Client
from app.errors import UnreachableError
from tests.builders import build, llama_keys, llama_tensors
from tests.daemon import Daemon, running_daemon

MIB = 1 << 20
NAME = "output.weight"


def large(path: Path, rows: int, kind: str = "f32") -> Path:
    """A model, mostly a hole, whose output has `rows` rows of 64 values."""
    build(
        path,
        {**llama_keys(1), "llama.vocab_size": rows},
        llama_tensors(1),
        types={"token_embd.weight": "q4_0", NAME: kind},
        shapes={"token_embd.weight": (64, rows), NAME: (64, rows)},
        seed=None,
    )
    return path


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a model whose output has 64 MiB."""
    root = tmp_path_factory.mktemp("models")
    large(root / "m.gguf", MIB // 4)
    with running_daemon("--model-roots", str(root), "--host-devices", "2", "--log-level", "warning") as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client of it."""
    with Client(daemon.url) as client:
        yield client


def ready(client: Client) -> str:
    """A ready handle of the model, on memory of the daemon's own."""
    body = {"model": "m.gguf", "load_mode": "none", "split_mode": "tensor", "devices": ["host0", "host1"]}
    return str(client.load(body, wait_seconds=60)["id"])


def begin(daemon: Daemon, handle_id: str, nbytes: int) -> socket.socket:
    """Ask for the large tensor and read `nbytes` of the answer, no more."""
    address = urlsplit(daemon.url)
    assert address.hostname is not None
    assert address.port is not None
    connection = socket.create_connection((address.hostname, address.port), timeout=10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    connection.sendall(f"GET /v1/handles/{handle_id}/tensors/{NAME}/data HTTP/1.1\r\nHost: ggufd\r\n\r\n".encode())
    got = b""
    while len(got) < nbytes:
        got += connection.recv(nbytes - len(got))
    assert got.startswith(b"HTTP/1.1 200")
    return connection


def status(daemon: Daemon, field: str) -> int:
    """A number of the daemon's process status; sizes in KiB."""
    text = Path(f"/proc/{daemon.pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{field}:"))


def descriptors(daemon: Daemon) -> int:
    """How many descriptors the daemon has open."""
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def test_a_client_that_goes_away_leaves_nothing(daemon: Daemon, client: Client) -> None:
    """Clients that break off in the middle, politely or not, leave no connection, no memory and no hold on a model."""
    handle_id = ready(client)
    begin(daemon, handle_id, 1000).close()
    time.sleep(0.2)
    before, held = descriptors(daemon), status(daemon, "RssAnon")
    for number in range(12):
        connection = begin(daemon, handle_id, 3 * MIB)
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by reset
        connection.close()
    until = time.monotonic() + 10
    while descriptors(daemon) > before and time.monotonic() < until:
        time.sleep(0.05)
    assert before == descriptors(daemon)
    assert status(daemon, "RssAnon") - held < 16 << 10
    released = client.release(handle_id)
    assert ("released", released["released_bytes"]) == (released["state"], sum(released["devices"].values()))
    assert [] == daemon.log


def test_a_release_does_not_wait_for_a_download(daemon: Daemon, client: Client) -> None:
    """While a client reads slowly the release ends at once; the client's answer then breaks off, and is seen to."""
    handle_id = ready(client)
    pieces = client.stream_tensor(handle_id, NAME)
    next(pieces)
    with Client(daemon.url) as other:
        began = time.monotonic()
        assert "released" == other.release(handle_id)["state"]
        assert time.monotonic() - began < 2
    with pytest.raises(UnreachableError, match="broke off"):
        for _ in pieces:
            pass
    until = time.monotonic() + 5
    while not daemon.log and time.monotonic() < until:
        time.sleep(0.05)
    assert "broken off: not_resident" in "".join(daemon.log)
    assert "ASGI" not in "".join(daemon.log)
    assert "Traceback" not in "".join(daemon.log)
    daemon.log.clear()


def test_others_are_served_meanwhile(daemon: Daemon, client: Client) -> None:
    """Downloads that nobody reads on take no thread: as many as there are threads and more keep nobody waiting."""
    handle_id = ready(client)
    connections = [begin(daemon, handle_id, 1000) for _ in range(10)]
    began = time.monotonic()
    assert 64 * MIB == len(client.read_tensor(handle_id, NAME))
    assert httpx.get(f"{daemon.url}/healthz").is_success
    assert time.monotonic() - began < 10
    for connection in connections:
        connection.close()
    client.release(handle_id)


@pytest.mark.slow
@pytest.mark.parametrize("values", [False, True])
def test_a_gigabyte_takes_little_memory(tmp_path: Path, values: bool) -> None:
    """A tensor of 1 GiB, split over two devices, streams with less than 64 MiB of extra memory; so do its values."""
    large(tmp_path / "m.gguf", 4 * MIB, "q8_0" if values else "f32")
    flags = ["--model-roots", str(tmp_path), "--host-devices", "host0=2GiB,host1=2GiB", "--log-level", "warning"]
    with running_daemon(*flags) as daemon, Client(daemon.url) as client:
        handle_id = ready(client)
        client.read_tensor(handle_id, NAME, stop=MIB, as_f32=values)  # imports what there is to import
        Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")  # the peak begins anew
        before, total = status(daemon, "VmRSS"), 0
        for piece in client.stream_tensor(handle_id, NAME, as_f32=values):
            total += len(piece)
        assert 1 << 30 == total
        assert status(daemon, "VmHWM") - before < 64 << 10
