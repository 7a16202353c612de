"""A real daemon as tests run it: another process, on a free loopback port, ended by its own id."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

START_SECONDS = 30
STOP_SECONDS = 30


@dataclass(slots=True, kw_only=True)
class Daemon:
    """A running daemon: where it listens, its process, and what it has said on standard error so far."""

    url: str
    process: "subprocess.Popen[str]"
    log: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return self.process.pid


@contextmanager
def running_daemon(
    *flags: str, env: dict[str, str] | None = None, before: Callable[[], None] | None = None
) -> Iterator[Daemon]:
    """`ggufd serve` with `flags` until the block ends; it must then end by itself with 0.

    `before` is called in the new process before it becomes the daemon.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--port", "0", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        preexec_fn=before,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(iter(process.stderr)), daemon=True)  # type: ignore[arg-type]
    reader.start()
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        said = re.search(r"http://\S+", process.stdout.readline())
        watchdog.cancel()
        assert said is not None, "".join(log)
        yield Daemon(url=said.group(), process=process, log=log)
        process.terminate()
        assert process.wait(STOP_SECONDS) == 0, "".join(log)
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join(5)
        process.stdout.close()
        process.stderr.close()
