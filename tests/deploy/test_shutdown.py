"""SIGTERM at any moment of a load: new work is refused, the rest ends by policy and in time, and nothing is left."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from app.loading.lifecycle import STAGES, LoadState
from tests.builders import build, llama_keys, llama_tensors, t0
from tests.deploy.deployment import ROOT
from tests.deploy.held_daemon import STEP_OF

HELD = [stage.value for stage in STAGES if stage is not LoadState.QUEUED]
COMPLAINT = "not everything was given back"


def test_every_stage_can_be_held() -> None:
    """The stages below are those of the lifecycle, all of them."""
    assert HELD == list(STEP_OF)


@dataclass(slots=True)
class Held:
    """A daemon that holds its loads in one stage."""

    url: str
    process: "subprocess.Popen[str]"
    scratch: Path
    log: list[str]

    def wait_for(self, state: str, count: int = 1) -> None:
        """Return when so many handles are in `state`."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            handles = httpx.get(f"{self.url}/v1/handles").json()["handles"]
            if [one["state"] for one in handles].count(state) >= count:
                return
            time.sleep(0.02)
        raise AssertionError(f"no load is {state}: {handles}")

    def submit(self, model: str = "m.gguf", device: str = "host") -> str:
        """A load that is under way; its id."""
        answer = httpx.post(f"{self.url}/v1/handles", json={"model": model, "devices": [device]})
        assert 202 == answer.status_code, answer.text
        return str(answer.json()["id"])

    def outcomes(self) -> list[str]:
        """How loads ended, by the log."""
        return [found[1] for line in self.log if (found := re.search(r"load ended .* outcome=(\w+)", line))]

    def end(self, deadline: float) -> float:
        """SIGTERM; checks that it ends with 0 in time and leaves nothing behind; answers the seconds it took."""
        session, started = os.getsid(self.process.pid), time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert 0 == self.process.wait(deadline + 5), "".join(self.log)
        took = time.monotonic() - started
        assert took < deadline
        assert [] == _of_session(session)
        assert [] == list(self.scratch.iterdir())
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{self.url}/healthz")
        return took


def _of_session(session: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found.append(stat.parent.name)
    return found


@contextmanager
def held_daemon(folder: Path, stage: str, seconds: float, *flags: str) -> Iterator[Held]:
    """A daemon with `m.gguf` and `slow.gguf` whose loads stay in `stage` for `seconds`."""
    models, scratch = folder / "models", folder / "scratch"
    for one in (models, scratch):
        one.mkdir()
    t0(models / "m.gguf")
    wide = {"ff": 1 << 18}
    build(models / "slow.gguf", llama_keys(1, **wide), llama_tensors(1, **wide), seed=None)
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.deploy.held_daemon", stage, str(seconds), "--model-roots", str(models), *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=scratch,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(iter(process.stderr)), daemon=True)  # type: ignore[arg-type]
    reader.start()
    try:
        said = re.search(r"http://\S+", process.stdout.readline())
        assert said is not None, "".join(log)
        yield Held(said.group(), process, scratch, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(5)
        process.stdout.close()
        process.stderr.close()


def waiting(daemon: Held, pool: ThreadPoolExecutor) -> "Future[httpx.Response]":
    """A client that waits for a load."""
    body = {"model": "m.gguf", "devices": ["host"]}
    return pool.submit(httpx.post, f"{daemon.url}/v1/handles", json=body, headers={"Prefer": "wait=30"}, timeout=40)


@pytest.mark.parametrize("stage", HELD)
def test_sigterm_in_each_stage_cancels_the_load(tmp_path: Path, stage: str) -> None:
    """In whatever stage a load is, the daemon lets it give up, answers who waits, and ends within its deadline."""
    with held_daemon(tmp_path, stage, 1, "--shutdown-seconds=10") as daemon, ThreadPoolExecutor() as pool:
        told = waiting(daemon, pool)
        daemon.wait_for(stage)
        daemon.end(10)
        assert "cancelled" == told.result().json()["code"]
    assert ["cancelled"] == daemon.outcomes()
    assert COMPLAINT not in "".join(daemon.log)


def test_sigterm_ends_queued_loads_and_resident_models(tmp_path: Path) -> None:
    """What waits is cancelled, what is resident is given back."""
    with held_daemon(tmp_path, "allocating", 0.5, "--shutdown-seconds=10", "--load-workers=1") as daemon:
        daemon.submit()
        daemon.wait_for("ready")
        daemon.submit()
        daemon.wait_for("allocating")
        daemon.submit()
        daemon.wait_for("queued")
        daemon.end(10)
    assert ["cancelled", "cancelled", "ready"] == sorted(daemon.outcomes())
    assert 1 == sum("unloaded handle=" in line for line in daemon.log)
    assert COMPLAINT not in "".join(daemon.log)


@pytest.mark.parametrize("stage", ["reading", "transferring"])
@pytest.mark.parametrize("policy", ["cancel", "finish"])
def test_a_load_that_hears_nothing_does_not_hold_the_deadline(tmp_path: Path, stage: str, policy: str) -> None:
    """A load that can't be stopped is left to the operating system when the time is up: still 0, and it is said."""
    flags = ("--shutdown-seconds=2", f"--shutdown-loads={policy}")
    with held_daemon(tmp_path, stage, 60, *flags) as daemon, ThreadPoolExecutor() as pool:
        told = waiting(daemon, pool)
        daemon.wait_for(stage)
        daemon.end(3)
        assert (503, "shutting_down") == (told.result().status_code, told.result().json()["code"])
    assert COMPLAINT in "".join(daemon.log)


@pytest.mark.parametrize("stage", ["planning", "transferring"])
def test_by_policy_loads_may_finish(tmp_path: Path, stage: str) -> None:
    """Told to let loads finish, the daemon does, the queued ones too; meanwhile it lives and takes no new work."""
    flags = ("--shutdown-seconds=20", "--shutdown-loads=finish", "--load-workers=1")
    with held_daemon(tmp_path, stage, 1, *flags) as daemon, ThreadPoolExecutor() as pool:
        told = waiting(daemon, pool)
        daemon.wait_for(stage)
        late = waiting(daemon, pool)
        daemon.wait_for("queued")
        ended = pool.submit(daemon.end, 20)
        while httpx.get(f"{daemon.url}/readyz").status_code == 200:
            time.sleep(0.02)
        assert 200 == httpx.get(f"{daemon.url}/healthz").status_code
        refused = httpx.post(f"{daemon.url}/v1/handles", json={"model": "m.gguf"})
        assert (503, "shutting_down") == (refused.status_code, refused.json()["code"])
        assert ["ready", "ready"] == [one.result().json()["state"] for one in (told, late)]
        assert ended.result() < 10
    assert ["ready", "ready"] == daemon.outcomes()
    assert 2 == sum("unloaded handle=" in line for line in daemon.log)


def test_a_load_that_would_not_finish_in_time_is_cancelled(tmp_path: Path) -> None:
    """Three quarters of the time are for finishing; what is slower is cancelled, and all ends in time."""
    slow = "--simulated-devices=slow:2GiB,no-mmap_support,bandwidth=4MiB"
    flags = ("--shutdown-seconds=4", "--shutdown-loads=finish", slow)
    with held_daemon(tmp_path, "planning", 0, *flags) as daemon:
        daemon.submit("slow.gguf", "slow")
        daemon.wait_for("transferring")
        assert daemon.end(5) >= 3
    assert ["cancelled"] == daemon.outcomes()
    assert COMPLAINT not in "".join(daemon.log)
