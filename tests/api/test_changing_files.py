"""Files that are cut or written while they are read, loaded and used: errors with a name, and a daemon that goes on."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.modelfile.reader import read_model_file
from tests.api.test_app import require_problem
from tests.builders import build, llama_keys, llama_tensors, t0
from tests.daemon import Daemon, running_daemon

CHANGED = {"file_changed", "truncated"}
MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "direct_io")
WIDE = {"ff": 1 << 17}  # 200 MB, mostly a hole: more than a second on a device of 64 MiB a second


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of this module's daemon."""
    return tmp_path_factory.mktemp("changing")


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    """A daemon with a slow device that takes no host memory: in every mode something is copied to it for a while."""
    devices = "slow:4GiB,bandwidth=64MiB,no-buffer_from_host_ptr"
    flags = ("--model-roots", str(folder), "--host-capacity-bytes", "2GiB", "--host-devices", "1")
    with running_daemon(*flags, "--simulated-devices", devices) as running:
        yield running


@pytest.fixture
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    """Its client; at the end the daemon must be the same, alive, and hold nothing."""
    with httpx.Client(base_url=daemon.url, timeout=30) as client:
        yield client
        assert daemon.process.poll() is None
        assert 200 == client.get("/healthz").status_code
        assert 0 == sum(device["allocated_bytes"] for device in client.get("/v1/devices").json()["devices"])


def loading(http: httpx.Client, model: str, mode: str) -> str:
    """The place of a handle whose load is moving bytes."""
    body = {"model": model, "devices": ["host0", "slow"], "load_mode": mode}
    response = http.post("/v1/handles", json=body)
    assert 202 == response.status_code, response.text
    place = response.headers["location"]
    for _ in range(1000):
        handle = http.get(place).json()
        if handle["state"] == "transferring" and handle["progress"] > 0:
            return place
        assert handle["error"] is None, handle["error"]
        time.sleep(0.01)
    raise AssertionError(handle)


def ended(http: httpx.Client, place: str) -> dict[str, Any]:
    """The handle once its load has failed."""
    for _ in range(1000):
        handle: dict[str, Any] = http.get(place).json()
        if handle["state"] == "failed":
            return handle
        time.sleep(0.01)
    raise AssertionError(handle)


@pytest.mark.parametrize("mode", MODES)
def test_a_file_cut_while_it_is_loaded_fails_the_load(http: httpx.Client, folder: Path, mode: str) -> None:
    """In every load mode, a file that shrinks under the load ends it with a typed error that names the file."""
    path = build(folder / "cut.gguf", llama_keys(2, **WIDE), llama_tensors(2, **WIDE), seed=None)
    place = loading(http, path.name, mode)
    os.truncate(path, 100_000)
    problem = ended(http, place)["error"]
    assert problem["code"] in CHANGED
    assert str(path) == problem["file"]


@pytest.mark.parametrize("mode", MODES)
def test_a_file_written_while_it_is_loaded_fails_the_load(http: httpx.Client, folder: Path, mode: str) -> None:
    """A file that keeps its length and changes its bytes is noticed before the model is called ready."""
    path = build(folder / "written.gguf", llama_keys(2, **WIDE), llama_tensors(2, **WIDE), seed=None)
    place = loading(http, path.name, mode)
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"changed!")
    problem = ended(http, place)["error"]
    assert "file_changed" == problem["code"]
    assert str(path) == problem["file"]


@pytest.mark.parametrize("mode", MODES)
def test_a_file_cut_under_a_loaded_model_hurts_nobody(http: httpx.Client, folder: Path, mode: str) -> None:
    """A model in use whose file shrinks still answers: with its bytes, or with an error; it can be released."""
    path = t0(folder / "used.gguf")
    tensor = read_model_file(path).tensors[-1]
    expected = path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
    body = {"model": path.name, "devices": ["host0"], "load_mode": mode}
    response = http.post("/v1/handles", json=body, headers={"Prefer": "wait=10"})
    assert 200 == response.status_code, response.text
    place = response.headers["location"]
    os.truncate(path, 100)
    served = http.get(f"{place}/tensors/{tensor.name}/data")
    if served.status_code != 200:
        assert served.json()["code"] in CHANGED
        require_problem(served, served.status_code, served.json()["code"])
    else:
        assert expected == served.content
    assert 200 == http.get(place).status_code
    assert http.delete(place).json()["released_bytes"] > 0


def test_a_file_rewritten_all_the_time_is_read_or_refused(http: httpx.Client, folder: Path) -> None:
    """While a file is written over and over, every plan is one of a whole file, or a typed refusal."""
    path = t0(folder / "restless.gguf")
    content, stop = path.read_bytes(), threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            path.write_bytes(content)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        answers = [http.post("/v1/plans", json={"model": path.name}) for _ in range(150)]
    finally:
        stop.set()
        thread.join()
    for answer in answers:
        if answer.status_code == 200:
            assert 312_576 == answer.json()["model"]["n_bytes"]
        else:
            assert answer.json()["code"] in {*CHANGED, "empty_file", "out_of_bounds"}
            require_problem(answer, 422, answer.json()["code"])


def mapped(http: httpx.Client, model: str) -> str:
    """The place of a ready handle whose memory is the file."""
    body = {"model": model, "devices": ["host0"], "load_mode": "mmap"}
    response = http.post("/v1/handles", json=body, headers={"Prefer": "wait=10"})
    assert 200 == response.status_code, response.text
    return str(response.headers["location"])


def test_a_mapped_file_that_is_written_to_is_refused_by_every_read(http: httpx.Client, folder: Path) -> None:
    """Bytes, values, slices, rows and tags of a model whose file was overwritten are no longer those that were loaded.

    The answer names the file as the client did.
    """
    (folder / "sub").mkdir()
    path = t0(folder / "sub" / "overwritten.gguf")
    place = mapped(http, "sub/overwritten.gguf")
    data = f"{place}/tensors/token_embd.weight/data"
    before = http.get(data)
    assert 200 == before.status_code
    time.sleep(0.02)  # the granularity of a file's times
    with path.open("r+b") as file:
        file.seek(read_model_file(path).tensors[0].offset)
        file.write(b"\x55" * 64)
    answers = [
        http.get(data),
        http.get(data, headers={"Range": "bytes=0-9"}),
        http.get(data, headers={"If-None-Match": before.headers["etag"]}),
        http.get(f"{data}?dtype=f32"),
        http.get(f"{data}?device=host"),
        http.post(f"{place}/embeddings", json={"tokens": [1]}),
    ]
    for answer in answers:
        problem = require_problem(answer, 422, "file_changed")
        assert "sub/overwritten.gguf" == problem["file"]
        assert str(folder) not in answer.text
    assert 422 == http.head(data).status_code
    vocabulary = http.get(f"{place}/metadata/tokenizer.ggml.tokens")
    assert str(folder) not in vocabulary.text
    assert http.delete(place).json()["released_bytes"] > 0


def test_a_mapped_file_that_is_renamed_removed_or_locked_away_is_still_served(http: httpx.Client, folder: Path) -> None:
    """What happens to a mapped file's name and rights is not its content's: the model reads as before."""
    path = t0(folder / "moved.gguf")
    place = mapped(http, path.name)
    wanted = {"tokens": [1, 2]}
    data = f"{place}/tensors/token_embd.weight/data"
    whole, rows = http.get(data), http.post(f"{place}/embeddings", json=wanted).json()
    other = t0(folder / "other.gguf", 3)
    for change in (
        lambda: path.chmod(0o400),
        lambda: path.rename(folder / "elsewhere.gguf"),
        lambda: other.rename(path),
        lambda: (folder / "elsewhere.gguf").unlink(),
        path.unlink,
    ):
        change()
        again = http.get(data)
        assert (200, whole.headers["etag"], whole.content) == (
            again.status_code,
            again.headers["etag"],
            again.content,
        )
        assert rows == http.post(f"{place}/embeddings", json=wanted).json()
        assert 304 == http.get(data, headers={"If-None-Match": whole.headers["etag"]}).status_code
    http.delete(place)
