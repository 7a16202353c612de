"""A daemon of one's own: started as a child process, asked for its address, and never left behind."""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import app
from app.errors import UnreachableError
from app.settings import child_environment

GREETING: Final = "ggufd listens on "
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 40.0
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running daemon and where it listens."""

    process: subprocess.Popen[str]
    url: str


@contextmanager
def own_daemon(flags: Sequence[str]) -> Iterator[Child]:
    """A daemon with `flags`, told to stop at the end, and ended if it does not. Raises UnreachableError.

    It dies with this process, and inherits no settings from the environment.
    """
    with ExitStack() as stack:
        with _signals_held_back():
            process = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own module
                [sys.executable, "-P", "-m", "app", "serve", *flags],
                env=child_environment({"PYTHONPATH": str(Path(app.__file__).resolve().parent.parent)}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # an interruption from the terminal is for us alone; we pass it on
                preexec_fn=partial(_die_with_parent, os.getpid()),
            )
            stack.callback(stop, process)
        yield Child(process=process, url=_address(process))


def stop(process: "subprocess.Popen[str]") -> int:
    """End the daemon and wait until it is gone; answers its exit code."""
    if process.poll() is None:
        process.terminate()
    try:
        code = process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    except KeyboardInterrupt:  # whoever interrupts once more does not wait
        process.kill()
        process.wait()
        raise
    if process.stdout is not None:
        process.stdout.close()
    return code


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    until = time.monotonic() + _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if not selector.select(left):
                break
            line = process.stdout.readline()
            if line.startswith(GREETING):
                return line.removeprefix(GREETING).strip()
            if not line:
                raise UnreachableError("the daemon ended before it listened, and has said why", url=None)
    raise UnreachableError(f"the daemon did not listen within {_START_SECONDS:g} s", url=None)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the end of this; to be used on the main thread.

    What a handler raises while the interpreter forks is dropped, and what it raises between the fork and the return
    leaves a child that nobody knows.
    """
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has died before we could ask for the signal
        os._exit(1)
