import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from app.cli.serve import introduction
from app.main import main
from app.settings import read_settings
from tests.builders import build, llama_keys, llama_tensors, t0
from tests.daemon import Daemon, running_daemon

SLOW = ("--simulated-devices", "slow:4GiB,bandwidth=16MiB", "--host-capacity-bytes", "2GiB")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--port", "http"], "--port"),
        (["--host-devices", "gpu0=1GiB"], "--host-devices"),
        (["--simulated-devices", "x"], "--simulated-devices"),
        (["--model-roots", "/no/such/folder"], "--model-roots: "),
        (["--model-roots", "~nobody-of-that-name/x"], "--model-roots: "),
        (["--model-roots", "/" + "x" * 300], "--model-roots: "),
        (["--host", "a..b"], "--host: "),
        (["--log-level", "loud"], "--log-level"),
        (["--simulated-devices", "a:1GiB;a:2GiB"], "--simulated-devices: "),
        (["--host-devices", "1", "--simulated-devices", "host0:1GiB"], "--simulated-devices: "),
    ],
)
def test_a_setting_that_makes_no_sense_ends_with_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], named: str
) -> None:
    """One line on standard error names the setting; nothing is served."""
    assert 2 == main(["serve", *flags])
    said = capsys.readouterr()
    assert ("", 1) == (said.out, said.err.count("\n"))
    assert said.err.startswith("ggufd serve: ")
    assert named in said.err


def test_a_variable_that_makes_no_sense_ends_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad variable is named like a bad flag."""
    monkeypatch.setenv("GGUFD_LOAD_WORKERS", "many")
    assert 2 == main(["serve"])
    assert capsys.readouterr().err.startswith("ggufd serve: GGUFD_LOAD_WORKERS: ")


def test_an_address_that_is_taken_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """When the port is in use the command says so and ends."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert 1 == main(["serve", "--port", str(taken.getsockname()[1])])
    said = capsys.readouterr().err
    assert "cannot listen on 127.0.0.1:" in said
    assert "--port" in said


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with one model loaded and another loading slowly."""
    t0(tmp_path / "small.gguf")
    shape = {"ff": 1 << 20}
    build(tmp_path / "slow.gguf", llama_keys(2, **shape), llama_tensors(2, **shape), seed=None)
    with running_daemon("--model-roots", str(tmp_path), *SLOW) as daemon:
        for body in ({"model": "small.gguf", "devices": ["host"]}, {"model": "slow.gguf", "devices": ["slow"]}):
            httpx.post(f"{daemon.url}/v1/handles", json=body, headers={"Prefer": "wait=0.5"}).raise_for_status()
        yield daemon


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_with_0(loading: Daemon, number: signal.Signals) -> None:
    """Told to stop while it loads, the daemon cancels, gives back and ends with 0 within its deadline."""
    states = [one["state"] for one in httpx.get(f"{loading.url}/v1/handles").json()["handles"]]
    assert ["ready", "transferring"] == states
    started = time.monotonic()
    os.kill(loading.pid, number)
    assert 0 == loading.process.wait(20)
    assert time.monotonic() - started < 5


def test_the_daemon_says_where_it_listens_on_one_line(tmp_path: Path) -> None:
    """Port 0 takes a free port, and the one line on standard output tells which."""
    with running_daemon("--model-roots", str(tmp_path), "--log-level", "warning") as daemon:
        assert 200 == httpx.get(f"{daemon.url}/healthz").status_code
    assert [] == daemon.log


def test_the_daemon_says_what_it_has_and_when_it_has_stopped(tmp_path: Path) -> None:
    """Its log begins with roots and devices, and ends with the signal and the end."""
    with running_daemon("--model-roots", str(tmp_path), "--host-devices", "host0=1GiB") as daemon:
        pass
    log = "".join(daemon.log)
    assert f"model roots: {tmp_path}" in log
    assert ", host0 1.0 GiB" in log
    assert "WARNING" not in log
    assert "SIGTERM" in log.splitlines()[-2]
    assert log.endswith("stopped\n")


def test_without_roots_or_on_an_open_address_the_daemon_warns() -> None:
    """Whoever starts a daemon that can load nothing, or that others can reach, is told."""
    with running_daemon("--host", "0.0.0.0", "--log-level", "warning") as daemon:
        pass
    assert ["no model roots", "whoever reaches this port"] == [
        words for line in daemon.log for words in ("no model roots", "whoever reaches this port") if words in line
    ]


@pytest.mark.parametrize(("host", "loopback"), [("127.0.0.1", True), ("localhost", True), ("::", False), ("h", False)])
def test_loopback_is_told_from_open_addresses(host: str, loopback: bool) -> None:
    """Only addresses of this machine alone go without a warning."""
    settings = replace(read_settings({}), host=host, model_roots=(Path("/"),))
    assert loopback == all(level == logging.INFO for level, _ in introduction(settings, ()))


def test_a_request_that_is_no_http_does_not_stop_the_daemon(tmp_path: Path) -> None:
    """Garbage, half requests and clients that leave change nothing for others."""
    with running_daemon("--model-roots", str(tmp_path)) as daemon:
        host, port = daemon.url.removeprefix("http://").split(":")
        for said in (
            b"\x16\x03\x01nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\n",
            b"POST /v1/plans HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
        ):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(said)
        assert 200 == httpx.get(f"{daemon.url}/healthz").status_code
