import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.loading.lifecycle import STAGES

COMMAND = [sys.executable, "-m", "app", "quickstart", "--offline"]


def children_of(pid: int) -> list[str]:
    """The command lines of processes whose parent is `pid`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(pid):
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_quickstart_shows_a_load_and_leaves_nothing(tmp_path: Path) -> None:
    """Without a network it makes a model, loads it over HTTP on two devices, explains it, and ends with 0."""
    done = subprocess.run(
        [*COMMAND, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    for words in ("made-up weights", "host0", "host1", "POST /v1/handles", "ready after", "cut along axis 1", "policy:",
                  "nothing is left running", "quickstart --serve"):  # fmt: skip
        assert words in done.stdout
    stages = [line.split()[0] for line in done.stdout.split("stage ")[1].splitlines()[1:8]]
    assert [stage.value for stage in STAGES] == stages
    assert {"small.gguf", "quickstart.gguf"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_served_the_printed_lines_work_as_they_stand(tmp_path: Path, number: signal.Signals) -> None:
    """With `--serve` the daemon stays until it is interrupted, and every printed curl line answers 2xx."""
    with subprocess.Popen(
        [*COMMAND, "--folder", str(tmp_path), "--serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or "-X DELETE" not in lines[-1]:
                line = process.stdout.readline()
                assert line
                if line.strip().startswith("curl "):
                    lines.append(line.strip())
            (daemon,) = children_of(process.pid)
            assert "serve" in daemon
            for line in lines:
                shell = line.replace("curl -s", "curl -s -o /dev/null -w '%{http_code}'", 1)
                answered = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=30, check=False)
                assert answered.stdout.startswith("2"), line
            assert len(lines) > 5
        finally:
            os.kill(process.pid, number)
        assert process.wait(30) == (0 if number == signal.SIGINT else 143)
    assert [] == children_of(process.pid)
