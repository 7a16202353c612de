"""The end of a daemon: in time and with 0, however often it is told, and whatever its threads are at."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.stopping import TOLD_TWICE, TOO_LONG
from tests.builders import build, llama_keys, llama_tensors
from tests.daemon import Daemon, running_daemon

SLOW = ("--simulated-devices", "slow:4GiB,bandwidth=16MiB", "--host-capacity-bytes", "2GiB")
STUCK = """
import sys, time
from app.main import main
from app.service import LoaderService
LoaderService.handles = lambda self, *asked: time.sleep(60)
sys.exit(main(["serve", "--port", "0", "--shutdown-seconds", "1.5"]))
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("gap", [0.0, 0.1, 0.2, 0.3])
def test_a_second_signal_never_changes_the_exit_code(tmp_path: Path, second: signal.Signals, gap: float) -> None:
    """Whenever in a shutdown a second signal comes, the daemon ends with 0."""
    with running_daemon("--model-roots", str(tmp_path)) as daemon:
        os.kill(daemon.pid, signal.SIGTERM)
        time.sleep(gap)
        if daemon.process.poll() is None:
            os.kill(daemon.pid, second)
        assert 0 == daemon.process.wait(20)


def waiting(daemon: Daemon, count: int, answers: list[Any]) -> list[threading.Thread]:
    """So many clients that wait for loads that take a minute; what they get goes to `answers`."""

    def ask() -> None:
        body = {"model": "slow.gguf", "devices": ["slow"], "load_mode": "none"}
        wanted = {"Prefer": "wait=60"}
        answers.append(httpx.post(f"{daemon.url}/v1/handles", json=body, headers=wanted, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while len(httpx.get(f"{daemon.url}/v1/handles").json()["handles"]) < count and time.monotonic() < until:
        time.sleep(0.02)
    return threads


@pytest.mark.parametrize(
    ("signals", "policy", "seconds", "told"),
    [
        ([signal.SIGTERM], "cancel", 5.0, {(409, "cancelled")}),
        ([signal.SIGINT, signal.SIGINT], "cancel", 2.0, {(409, "cancelled"), (503, "shutting_down")}),
        ([signal.SIGINT, signal.SIGINT], "finish", 2.0, {(503, "shutting_down")}),
    ],
)
def test_clients_that_wait_are_told(
    tmp_path: Path, signals: list[signal.Signals], policy: str, seconds: float, told: set[tuple[int, str]]
) -> None:
    """Whoever waits when the daemon ends gets a problem that says so; a second SIGINT makes it end at once."""
    shape = {"ff": 1 << 20}
    build(tmp_path / "slow.gguf", llama_keys(2, **shape), llama_tensors(2, **shape), seed=None)
    answers: list[httpx.Response] = []
    with running_daemon("--model-roots", str(tmp_path), "--shutdown-loads", policy, *SLOW) as daemon:
        threads = waiting(daemon, 8, answers)
        started = time.monotonic()
        for number in signals:
            os.kill(daemon.pid, number)
            time.sleep(0.2)
        assert 0 == daemon.process.wait(20)
        assert time.monotonic() - started < seconds
        for thread in threads:
            thread.join(10)
    assert 8 == len(answers)
    assert told >= {(answer.status_code, answer.json()["code"]) for answer in answers}
    assert "Traceback" not in "".join(daemon.log)
    assert (policy == "finish") == any(TOLD_TWICE in line for line in daemon.log)


def test_a_request_that_never_ends_is_told_when_the_daemon_does(tmp_path: Path) -> None:
    """A body that is still awaited at the end is answered 503 `shutting_down`, without a traceback in the log."""
    with running_daemon("--model-roots", str(tmp_path), "--shutdown-seconds", "2") as daemon:
        host, port = daemon.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 10) as client:
            client.sendall(
                b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
            time.sleep(0.2)
            os.kill(daemon.pid, signal.SIGTERM)
            said = b""
            while piece := client.recv(65536):
                said += piece
        assert 0 == daemon.process.wait(20)
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b'"code": "shutting_down"' in said
    assert "Traceback" not in "".join(daemon.log)


def test_a_thread_that_is_stuck_does_not_keep_the_daemon() -> None:
    """When the deadline has passed, the process ends with 0 and a line that says so, whatever its threads are at."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().split()[-1]
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{url}/v1/handles", timeout=0.3)
        started = time.monotonic()
        process.terminate()
        assert 0 == process.wait(20)
        assert time.monotonic() - started < 4
        assert TOO_LONG in process.stderr.read()
