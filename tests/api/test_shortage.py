"""A machine that is short of memory or descriptors: answers that say so, and a daemon that goes on."""

import errno
import os
import resource
from pathlib import Path

import httpx
import pytest

from app.modelfile import libc
from tests.api.conftest import Small
from tests.api.test_app import require_problem
from tests.builders import t0
from tests.daemon import running_daemon

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The edge runs on asyncio."""
    return "asyncio"


def test_a_process_without_descriptors_says_so_and_recovers(tmp_path: Path) -> None:
    """With every descriptor taken loads and plans are 503 `out_of_descriptors`; with some free again they work."""
    t0(tmp_path / "m.gguf")
    with running_daemon("--model-roots", str(tmp_path)) as daemon, httpx.Client(base_url=daemon.url) as client:
        assert 200 == client.get("/healthz").status_code
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        taken = len(os.listdir(f"/proc/{daemon.pid}/fd"))
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (taken, hard))
        for path in ("/v1/plans", "/v1/handles"):
            refused = client.post(path, json={"model": "m.gguf"}, headers={"Prefer": "wait=10"})
            problem = require_problem(refused, 503, "out_of_descriptors")
            assert "1" == refused.headers["retry-after"]
            assert "EMFILE" == problem["found"]
        assert 200 == client.get("/healthz").status_code
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert 200 == client.post("/v1/handles", json={"model": "m.gguf"}, headers={"Prefer": "wait=10"}).status_code


@pytest.mark.parametrize(("mode", "status"), [("mmap", 507), ("auto", 200)])
async def test_a_mapping_without_memory(
    small: Small, root: Path, monkeypatch: pytest.MonkeyPatch, mode: str, status: int
) -> None:
    """A mapping that was asked for and finds no memory is 507; where nobody asked for it, the file is read."""

    def refuse(*_arguments: object) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    t0(root / "t0.gguf")
    async with small() as (client, _daemon):
        monkeypatch.setattr(libc, "map_file", refuse)
        body = {"model": "t0.gguf", "load_mode": mode}
        answer = await client.post("/v1/handles", json=body, headers={"Prefer": "wait=10"})
        assert status == answer.status_code, answer.text
        if status == 507:
            require_problem(answer, 507, "insufficient_memory")
        else:
            assert "none" == answer.json()["load_mode"]["resolved"]


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (MemoryError(), 507, "insufficient_memory"),
        (OSError(errno.EMFILE, "Too many open files"), 503, "out_of_descriptors"),
        (OSError(errno.EIO, "Input/output error"), 500, "internal"),
    ],
)
async def test_a_request_that_finds_nothing_left(
    small: Small, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, code: str
) -> None:
    """Memory and descriptors that run out in the midst of a request are its answer; other faults are internal."""

    def fail(*_arguments: object) -> None:
        raise fault

    async with small() as (client, daemon):
        monkeypatch.setattr(daemon.service, "handles", fail)
        require_problem(await client.get("/v1/handles"), status, code)
