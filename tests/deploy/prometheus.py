"""A real Prometheus as tests run it: Debian's package, on a free loopback port, asked over HTTP."""

import json
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.deployment import PROMETHEUS, load_yaml

START_SECONDS = 30

Series = tuple[Mapping[str, str], list[float]]
"""Labels and values."""


def tool(name: str) -> str:
    """The path of a program of a Debian package; skips where it isn't installed."""
    found = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one."""

    url: str
    started_at: float

    def get(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=20).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def now(self, expression: str) -> list[Series]:
        """What `expression` is at this moment."""
        found = self.get("query", query=expression)["result"]
        return [(one["metric"], _numbers([one["value"]])) for one in found]

    def over_time(self, expression: str, step: float = 2) -> list[Series]:
        """What `expression` was since the start, every `step` seconds; points that are no number are left out."""
        found = self.get("query_range", query=expression, start=self.started_at, end=time.time(), step=step)["result"]
        return [(one["metric"], _numbers(one["values"])) for one in found]

    def value(self, expression: str) -> float:
        """The one number that `expression` is now."""
        ((_, (number,)),) = self.now(expression)
        return number


def _numbers(points: list[tuple[float, str]]) -> list[float]:
    return [number for _, text in points if not math.isnan(number := float(text))]


def configuration(target: str, folder: Path) -> dict[str, Any]:
    """The shipped configuration with one target and a second between scrapes, and alerts without patience."""
    shipped: dict[str, Any] = load_yaml(PROMETHEUS / "prometheus.yaml")
    shipped["global"] = dict.fromkeys(shipped["global"], "1s")
    hasty = folder / "alerts.json"
    hasty.write_text(json.dumps(hasty_alerts()))
    shipped["rule_files"] = [str(PROMETHEUS / "rules" / "recording.yaml"), str(hasty)]
    (job,) = shipped["scrape_configs"]
    job["static_configs"][0]["targets"] = [target]
    return shipped


def hasty_alerts() -> Any:
    """The shipped alerts for a mix of a minute and a half: they do not wait, and a load is stuck after ten seconds."""
    shipped = load_yaml(PROMETHEUS / "rules" / "alerts.yaml")
    for rule in shipped["groups"][0]["rules"]:
        rule["for"] = "0s"
        rule["expr"] = rule["expr"].replace("stall:seconds > 300", "stall:seconds > 10")
    return shipped


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Prometheus with the shipped rules, scraping `target` every second into `folder`, until the block ends."""
    program = tool("prometheus")
    settings = folder / "prometheus.json"
    settings.write_text(json.dumps(configuration(target, folder)))  # JSON is YAML
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={settings}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(f"http://127.0.0.1:{port}", time.time())
        _wait_until_ready(server.url, process, folder / "log")
        yield server
    finally:
        process.terminate()
        process.wait(20)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/-/ready", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"Prometheus is not ready: {log.read_text()}")
