import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli.progress import ProgressBar, bar
from app.client import Client
from app.main import main
from tests.builders import t0
from tests.daemon import Daemon, running_daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A daemon and its root, with one good and one bad model."""
    root = tmp_path_factory.mktemp("models")
    t0(root / "t0.gguf")
    (root / "bad.gguf").write_bytes(b"nonsense")
    with running_daemon("--model-roots", str(root), "--host-devices", "2", "--host-capacity-bytes", "1GiB") as running:
        yield running, root


def test_a_model_is_loaded_and_stays(daemon: tuple[Daemon, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends when the model is ready, shows its stages and how to release it."""
    running, root = daemon
    assert 0 == main(["load", str(root / "t0.gguf"), "--url", running.url, "--split-mode", "tensor"])
    text = capsys.readouterr().out
    for words in ("is ready", "queued", "transferring", "total", "host0", f"curl -X DELETE {running.url}/v1/handles/"):
        assert words in text


def test_a_path_under_a_root_and_json(daemon: tuple[Daemon, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A path that does not exist here is looked for under the daemon's roots; `--json` prints the handle."""
    running, _ = daemon
    assert 0 == main(["load", "t0.gguf", "--url", running.url, "--json", "--devices", "host1"])
    handle = json.loads(capsys.readouterr().out)
    assert ("ready", "t0.gguf") == (handle["state"], handle["model"])


def test_mode_warnings_and_rehearsals_are_told(
    daemon: tuple[Daemon, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever loads sees the mode that came of it and why, what is odd, and that declared devices keep nothing."""
    monkeypatch.setenv("COLUMNS", "80")
    running, root = daemon
    t0(root / "odd.gguf", set_keys={"general.alignment": 32, "tokenizer.ggml.tokens": ["a", "a"]})
    assert 0 == main(["load", "odd.gguf", "--url", running.url, "--devices", "1GiB,host0", "--load-mode", "none"])
    text = capsys.readouterr().out
    for words in ("load mode none (asked for: none)", "a rehearsal on declared devices: device0 ", "warnings\n"):
        assert words in text
    assert max(len(line) for line in text.splitlines() if "curl" not in line) <= 80


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["bad.gguf"], "bad_magic"),
        (["none.gguf"], "model_not_found"),
        (["t0.gguf", "--devices", "nowhere"], "bad_request"),
        (["t0.gguf", "--devices", "1KB"], "insufficient_memory"),
    ],
)
def test_what_the_daemon_refuses_is_told_with_its_code(
    daemon: tuple[Daemon, Path], capsys: pytest.CaptureFixture[str], words: list[str], code: str
) -> None:
    """The daemon's own code and sentence arrive on standard error, with 1, or 2 for a wish that makes no sense."""
    running, _ = daemon
    assert (2 if code == "bad_request" else 1) == main(["load", *words, "--url", running.url])
    assert capsys.readouterr().err.startswith(f"ggufd: {code}: ")


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:8090", "ftp://127.0.0.1", ""])
def test_an_address_that_is_none_is_misuse(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """What does not begin as an address must is one line that names it, with 2: nobody was asked."""
    assert 2 == main(["load", "t0.gguf", "--url", url])
    assert capsys.readouterr().err.startswith(f"ggufd: bad_request: --url: {url!r} does not begin with http://")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://["])
def test_where_no_daemon_answers_is_told(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """A wrong address is one line, with the address, with 1."""
    assert 1 == main(["load", "t0.gguf", "--url", url])
    said = capsys.readouterr().err
    assert said.startswith("ggufd: unreachable: ")
    assert url in said


def test_the_bar_is_drawn_for_people_only() -> None:
    """On a terminal the bar is drawn over itself and wiped at the end; elsewhere nothing is written."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    handle = {"state": "transferring", "progress": 0.5, "eta_seconds": 1.2}
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with ProgressBar(stream) as progress:
            progress.show(handle)
    assert "" == file.getvalue()
    assert "50 %" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_bar_tells_state_share_and_time_left() -> None:
    """One line says what happens, how far it is, and how long it will take where that is known."""
    assert "transferring  [########........................]  25 %  1.20 s left" == bar(
        {"state": "transferring", "progress": 0.25, "eta_seconds": 1.2}
    )
    assert "queued        [................................]   0 %" == bar(
        {"state": "queued", "progress": 0.0, "eta_seconds": None}
    )


def test_an_interruption_while_the_daemon_answers_cancels_the_load(
    daemon: tuple[Daemon, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the request has gone and before its answer came leaves nothing loaded."""
    running, _ = daemon
    plain = Client.load

    def interrupted(self: Client, *words: Any, **named: Any) -> dict[str, Any]:
        monkeypatch.setattr(Client, "load", plain)
        plain(self, *words, **named)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Client, "load", interrupted)
    try:
        assert 130 == main(["load", "t0.gguf", "--url", running.url])
    finally:
        signal.signal(signal.SIGINT, before)
    assert "the load was cancelled" in capsys.readouterr().err
    with Client(running.url) as client:
        assert "ready" not in [handle["state"] for handle in client.handles()][-1:]
