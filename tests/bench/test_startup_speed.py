"""From nothing to a served answer, and what the catalog costs of it."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.daemon import running_daemon

pytestmark = pytest.mark.bench

ROUNDS = 7

CATALOG_COST = """
import resource, time
import numpy
import app.architectures.blocks, app.architectures.standard_memory, app.architectures.understanding
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
from app.architectures.registry import load_catalog
size = len(load_catalog())
took = time.perf_counter() - start
print(size, took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.fixture
def compiled(tmp_path: Path) -> dict[str, str]:
    """An environment in which bytecode is kept, as it is where ggufd is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}


def test_health_is_served_within_a_second(compiled: dict[str, str]) -> None:
    """From starting the process to an answered liveness probe takes under a second (median of 7)."""
    took = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        with running_daemon(env=compiled) as daemon:
            assert httpx.get(f"{daemon.url}/healthz").status_code == 200
            took.append(time.perf_counter() - start)
    median = statistics.median(took[1:])  # the first compiles
    print(f"start to /healthz: median {median:.2f} s of {', '.join(f'{seconds:.2f}' for seconds in took[1:])}")
    assert median < 1.0


def test_the_catalog_costs_little_of_it(compiled: dict[str, str]) -> None:
    """All architectures together add under 100 ms and 20 MB to a start (median of 7)."""
    took, grown, size = [], [], 0
    for _ in range(1 + ROUNDS):
        command = [sys.executable, "-c", CATALOG_COST]
        answer = subprocess.run(command, env=compiled, capture_output=True, text=True, check=True).stdout.split()
        size = int(answer[0])
        took.append(float(answer[1]))
        grown.append(int(answer[2]) / 1024)
    seconds, mebibytes = statistics.median(took[1:]), statistics.median(grown[1:])
    print(f"catalog of {size} architectures: {seconds * 1e3:.0f} ms, {mebibytes:.1f} MiB")
    assert seconds < 0.100
    assert mebibytes < 20
