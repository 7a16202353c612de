import http.server
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from app.client import Client
from app.errors import (
    BusyError,
    ConflictError,
    DeviceError,
    FileError,
    GgufdError,
    NotFoundError,
    PlanError,
    RequestError,
    UnreachableError,
)
from app.ggml import BY_NAME, dequantise
from app.modelfile.reader import read_model_file
from tests.builders import t0, vocabulary
from tests.daemon import Daemon, running_daemon

SPLIT = {"model": "m.gguf", "split_mode": "tensor", "devices": ["host0", "host1"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the models."""
    folder = tmp_path_factory.mktemp("models")
    keys = {**vocabulary(1100), "llama.vocab_size": None}
    shapes = dict.fromkeys(("token_embd.weight", "output.weight"), (64, 1100))
    t0(folder / "m.gguf", set_keys=keys, shapes=shapes, types={"token_embd.weight": "q8_0"})
    (folder / "bad.gguf").write_bytes(b"nonsense")
    return folder


@pytest.fixture(scope="module")
def daemon(root: Path) -> Iterator[Daemon]:
    """A daemon with two host devices, one without bytes, and a slow one."""
    simulated = "sum0:1GiB;slow:1GiB,bandwidth=100KiB"
    flags = ["--host-devices", "2", "--host-capacity-bytes", "1GiB", "--simulated-devices", simulated]
    with running_daemon("--model-roots", str(root), *flags, "--log-level", "warning") as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client; what a test left is released behind it."""
    with Client(daemon.url) as client:
        yield client
        for handle in client.handles():
            client.release(handle["id"])


def test_load_wait_read_release(client: Client, root: Path) -> None:
    """The whole life of a model: planned, loaded, waited for, read to the last byte, released."""
    plan = client.plan(SPLIT)
    queued = client.load(SPLIT)
    seen: list[str] = []
    handle = client.wait(queued["id"], show=lambda view: seen.append(view["state"]))
    assert ("ready", "ready") == (handle["state"], seen[-1])
    assert plan["plan_id"] == client.handle_plan(handle["id"])["plan_id"]
    model = read_model_file(root / "m.gguf")
    with (root / "m.gguf").open("rb") as file:
        for facts in client.tensors(handle["id"]):
            info = model.by_name[facts["name"]]
            file.seek(info.offset)
            assert file.read(info.nbytes) == client.read_tensor(handle["id"], facts["name"])
    assert "released" == client.release(handle["id"])["state"]
    assert client.release(handle["id"]) == client.release(handle["id"])
    with pytest.raises(ConflictError) as gone:
        client.read_tensor(handle["id"], "output.weight")
    assert "not_resident" == gone.value.code


def test_parts_of_tensors(client: Client) -> None:
    """Ranges, slices and values come as asked for."""
    handle = client.load(SPLIT, wait_seconds=30)["id"]
    whole = client.read_tensor(handle, "output.weight")
    assert whole[10:20] == client.read_tensor(handle, "output.weight", start=10, stop=20)
    assert whole[10:] == client.read_tensor(handle, "output.weight", start=10)
    parts = [client.read_tensor(handle, "output.weight", device=name) for name in ("host0", "host1")]
    assert whole == b"".join(parts)
    raw = np.frombuffer(client.read_tensor(handle, "token_embd.weight"), np.uint8).reshape(1100, -1)
    values = dequantise(BY_NAME["q8_0"], raw)
    assert values.tobytes() == client.read_tensor(handle, "token_embd.weight", as_f32=True)
    assert np.array_equal(values[[1099, 0, 5]], client.embeddings(handle, [1099, 0, 5]))
    assert np.array_equal(values[[7]], client.embeddings(handle, np.array([7]), copy=0))  # type: ignore[arg-type]
    assert "q8_0" == client.tensor(handle, "token_embd.weight")["type"]
    assert ["blk.1.attn_q.weight"] == [it["name"] for it in client.tensors(handle, role="attn_q", layer=1)]


def test_lists_go_on_over_pages(client: Client) -> None:
    """The vocabulary comes to its end, however many pages it takes; metadata, devices and the catalog are lists."""
    handle = client.load("m.gguf", wait_seconds=30)["id"]
    assert [*range(1100)] == [token["id"] for token in client.vocabulary(handle)]
    assert "general.architecture" in {entry["key"] for entry in client.metadata(handle)}
    assert {"host", "host0", "host1", "sum0", "slow"} == {device["name"] for device in client.devices()}
    assert "llama" in {architecture["name"] for architecture in client.architectures()}
    assert handle in {view["id"] for view in client.handles()}


def test_the_daemons_codes_are_errors(client: Client) -> None:
    """Each problem arrives as the class its code belongs to, with its facts."""
    with pytest.raises(NotFoundError) as missing:
        client.load("none.gguf")
    assert "model_not_found" == missing.value.code
    with pytest.raises(RequestError) as wrong:
        client.plan({"model": "m.gguf", "devices": ["nowhere"]})
    assert "devices" in str(wrong.value.facts["field"])
    with pytest.raises(PlanError):
        client.plan({"model": "m.gguf", "split_mode": "row"})
    with pytest.raises(FileError) as bad:
        client.load("bad.gguf", wait_seconds=30)
    assert ("bad_magic", True) == (bad.value.code, "handle_id" in bad.value.facts)
    with pytest.raises(FileError):
        client.wait(client.load("bad.gguf")["id"])
    handle = client.load({"model": "m.gguf", "devices": ["sum0"], "load_mode": "none"}, wait_seconds=30)["id"]
    with pytest.raises(DeviceError, match="checksum"):
        client.read_tensor(handle, "output.weight")
    kept = client.load({"model": "m.gguf", "devices": ["host0"]}, wait_seconds=30)["id"]
    with pytest.raises(RequestError) as beyond:
        client.read_tensor(kept, "output.weight", start=1 << 40)
    assert "range_not_satisfiable" == beyond.value.code
    with pytest.raises(NotFoundError) as unknown:
        client.embeddings("h?none#", [1])
    assert "handle_not_found" == unknown.value.code


def test_a_wait_has_an_end(client: Client) -> None:
    """A load that takes too long is still_loading, for who waits and for who reads, and goes on until released."""
    slow = client.load({"model": "m.gguf", "devices": ["slow"], "load_mode": "none"}, wait_seconds=0.2)
    assert slow["state"] not in ("ready", "failed")
    for call in (lambda: client.wait(slow["id"], timeout_seconds=0.2), lambda: client.metadata(slow["id"])):
        with pytest.raises(BusyError) as busy:
            call()
        assert "still_loading" == busy.value.code
    assert "cancelled" == client.release(slow["id"])["state"]


def test_the_same_key_gives_the_same_handle(client: Client) -> None:
    """An idempotency key makes a repeated request harmless; with another request it is a conflict."""
    first = client.load("m.gguf", idempotency_key="k")
    assert first["id"] == client.load("m.gguf", idempotency_key="k")["id"]
    with pytest.raises(ConflictError):
        client.load(SPLIT, idempotency_key="k")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[", "ftp://127.0.0.1"])
def test_no_daemon(url: str) -> None:
    """Where nothing answers, every call is an UnreachableError that names the address."""
    with pytest.raises(UnreachableError) as nobody, Client(url) as client:
        client.devices()
    assert url == nobody.value.facts["url"]


@contextmanager
def answering(body: bytes, status: int = 200, promised: int | None = None) -> Iterator[str]:
    """Something else that listens, and answers everything in the same way; the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if promised is None else promised))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the base class calls them so

        def log_message(self, *_: object) -> None:
            """Nobody wants to know."""

    with listening(Handler) as url:
        yield url


@contextmanager
def listening(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server whose requests `handler` answers; its address."""
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"<html>", 200), (b"[]", 200), (b"", 200), (b"[" * 5000, 200), (b"<html>", 502), (b"[]", 404)],
)
def test_something_else_answers(body: bytes, status: int) -> None:
    """What is no ggufd is told so, whatever its status."""
    with answering(body, status) as url, Client(url) as client:
        for call in (client.devices, lambda: client.embeddings("h", [1])):
            with pytest.raises(UnreachableError, match="no ggufd"):
                call()


def test_a_newer_daemons_problem_is_repeated() -> None:
    """A code that this client does not know is still an error that repeats what was said."""
    with (
        answering(b'{"code": "brand_new", "detail": "it failed"}', 418) as url,
        Client(url) as client,
        pytest.raises(GgufdError, match="brand_new: it failed"),
    ):
        client.devices()


def test_an_answer_that_ends_too_early() -> None:
    """An answer that breaks off is an UnreachableError, after what did arrive."""
    with answering(b"abc", promised=10) as url, Client(url) as client:
        pieces = client.stream_tensor("h", "t")
        assert b"abc" == next(pieces)
        with pytest.raises(UnreachableError, match="broke off"):
            next(pieces)


def test_more_rows_than_one_answer_has() -> None:
    """Rows beyond what one request or answer may have are asked for in parts, in order; only whole numbers are rows."""
    asked: list[list[int]] = []
    problems = {
        400: b'{"code": "bad_request", "detail": "too many", "field": "tokens", "max_tokens": 3}',
        413: b'{"code": "payload_too_large", "detail": "too long", "limit_bytes": 9}',
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            tokens = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["tokens"]
            asked.append(tokens)
            body = io.BytesIO()
            status = 413 if len(tokens) > 8 else 400 if len(tokens) > 3 else 200
            if status in problems:
                body.write(problems[status])
            else:
                np.save(body, np.array([[token, -token] for token in tokens], np.float32))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.getvalue())))
            self.end_headers()
            self.wfile.write(body.getvalue())

        def log_message(self, *_: object) -> None:
            """Nobody wants to know."""

    with listening(Handler) as url, Client(url) as client:
        assert [[token, -token] for token in range(8)] == client.embeddings("h", range(8)).tolist()
        assert [[*range(8)], [0, 1, 2], [3, 4, 5], [6, 7]] == asked
        assert [[token, -token] for token in range(15)] == client.embeddings("h", range(15)).tolist()
        for senseless in ([1.7], "12"):
            with pytest.raises(TypeError):
                client.embeddings("h", senseless)  # type: ignore[arg-type]
