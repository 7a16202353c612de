import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.commands import run
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
        said = process.stdout.read()
        assert process.wait(30) == 0
    assert said.endswith("the daemon has stopped; nothing is left running\n")
    assert [] == children_of(process.pid)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_says_so_and_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Told to stop on the way, it ends with the signal's code, says that it has stopped, and its daemon is gone."""
    with subprocess.Popen(
        [*COMMAND, "--folder", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "http://" not in (line := process.stdout.readline()):
            assert line
        os.kill(process.pid, number)
        assert process.wait(30) == code
        assert "ggufd: interrupted; nothing is left running\n" == process.stderr.read()
    assert [] == children_of(process.pid)


def test_a_reader_that_leaves_early_is_not_the_folders_fault(tmp_path: Path) -> None:
    """When the other end of the pipe closes at once, nothing is said about the folder."""
    with subprocess.Popen(
        [*COMMAND, "--folder", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 1
        assert b"" == process.stderr.read()


def test_the_end_is_told_once_and_lines_are_short(tmp_path: Path) -> None:
    """One sentence says that nothing is left; only commands that can be typed are longer than 80 columns."""
    done = subprocess.run(
        [*COMMAND, "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"COLUMNS": "80"},
    )
    assert (1, 1) == (done.stdout.count("nothing is left running"), done.stdout.count("what to try next"))
    assert [] == [line for line in done.stdout.splitlines() if len(line) > 80 and " -m app " not in line]


def test_a_port_without_serve_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that would change nothing is refused, and named."""
    assert 2 == run(["quickstart", "--port", "9"])
    assert capsys.readouterr().err == "ggufd: bad_request: quickstart: --port does nothing without --serve\n"


def test_in_the_background_ctrl_c_ends_it_too(tmp_path: Path) -> None:
    """A shell starts what it puts in the background with SIGINT ignored: quickstart heeds it all the same."""
    with subprocess.Popen(
        [
            "/bin/sh",
            "-c",
            f"{shlex.join([*COMMAND, '--folder', str(tmp_path), '--serve', '--port', '0'])} & echo $!; wait",
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        while "press Ctrl-C" not in (line := shell.stdout.readline()):
            assert line
        os.kill(pid, signal.SIGINT)
        assert shell.stdout.read().endswith("the daemon has stopped; nothing is left running\n")
