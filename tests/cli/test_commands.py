import subprocess
import sys
from pathlib import Path

import pytest

from app import __version__
from app.cli.commands import COMMANDS
from app.main import main
from tests.builders import t0


def test_every_command_is_listed_and_helps(capsys: pytest.CaptureFixture[str]) -> None:
    """`ggufd --help` names every command, and each explains itself, with 0."""
    assert 0 == main(["--help"])
    listed = capsys.readouterr().out
    for name in COMMANDS:
        assert name in listed
        assert 0 == main([name, "--help"])
        assert f"ggufd {name}" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """`ggufd --version` prints the version."""
    assert 0 == main(["--version"])
    assert f"ggufd {__version__}\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "ggufd: the following arguments are required: COMMAND ("),
        (["nonsense"], "ggufd: argument COMMAND: invalid choice: 'nonsense' (choose from "),
        (["inspect"], "ggufd inspect: the following arguments are required: FILE ("),
        (["plan", "--nonsense"], "ggufd plan: there is no flag --nonsense ("),
        (
            ["load", "x", "--split-moed", "tensor"],
            "ggufd load: there is no flag --split-moed; is --split-mode meant? (",
        ),
        (["plan", "x", "--n-ctxx=4"], "ggufd plan: there is no flag --n-ctxx; is --n-ctx meant? ("),
        (["load", "x", "y\x1b"], "ggufd load: 'y\\x1b' is one argument too many ("),
        (["load", "x", "--split-mode", "tensr"], "ggufd load: argument --split-mode: invalid choice: 'tensr' (choose "),
        (["quickstart", "--serve", "--port", "abc"], "ggufd: bad_request: --port: 'abc' is not a whole number from "),
    ],
)
def test_a_misused_command_ends_with_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Argument errors are one line on standard error, with 2; a flag that is nearly one is told which."""
    assert 2 == main(argv)
    told = capsys.readouterr()
    assert told.err.startswith(said)
    assert ("", 1) == (told.out, told.err.count("\n"))


def test_an_error_is_one_line_with_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that fails says so in one line on standard error, nothing else, with 1."""
    missing = tmp_path / "line\nfeed\x1b[31m.gguf"
    assert 1 == main(["inspect", str(missing)])
    said = capsys.readouterr()
    assert ("", 1) == (said.out, said.err.count("\n"))
    assert said.err.startswith("ggufd: model_not_found: ")
    assert "\x1b" not in said.err


def test_an_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A full disk is one line, with 1, not a traceback."""
    path = t0(tmp_path / "t0.gguf")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "app", "plan", str(path)], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (1, b"ggufd: the output cannot be written: No space left on device\n") == (done.returncode, done.stderr)


def test_a_bad_variable_is_misuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that reads settings ends with 2 and one line that names the one that makes no sense."""
    monkeypatch.setenv("GGUFD_PORT", "many")
    for words in (["plan", "x.gguf"], ["load", "x.gguf"], ["inspect", "x.gguf"], ["quickstart", "--offline"]):
        assert 2 == main(words)
        said = capsys.readouterr().err
        assert (1, True) == (said.count("\n"), "GGUFD_PORT: " in said)


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    """When the other end of the pipe closes, the command ends without a word."""
    path = t0(tmp_path / "t0.gguf", 400)
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "plan", str(path), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert b"" == process.stderr.read()
    process.stderr.close()
    assert process.wait(20) in (0, 1)


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", ">&- 2>&- <&-", "<&- >&-"])
def test_closed_streams_are_no_error(tmp_path: Path, closed: str) -> None:
    """Whoever starts a command may have closed its input or outputs: it does its work, and says what it can."""
    path = t0(tmp_path / "t0.gguf")
    words = f"exec {sys.executable} -m app plan {path} --json {closed}"
    done = subprocess.run(["sh", "-c", words], capture_output=True, check=False)
    assert 0 == done.returncode
    assert b"Traceback" not in done.stderr
    assert (">&-" in closed.replace("2>&-", "")) != done.stdout.startswith(b"{")
