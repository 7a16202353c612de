import os
import subprocess
import sys
from pathlib import Path

import app

STARTED_AS_IT_IS_TOLD_TO_STOP = """
import os, signal, sys
from app.cli.child import own_daemon

def stop(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, stop)
os.register_at_fork({moment}=lambda: os.kill(os.getpid(), signal.SIGTERM))
try:
    with own_daemon(["--port", "0"]):
        print("went on")
except KeyboardInterrupt:
    print("stopped")
try:
    os.waitpid(-1, 0)
    print("left a child")
except ChildProcessError:
    pass
"""


def told_to_stop(moment: str) -> str:
    """What a process says that is told to stop at a moment of the fork that starts its daemon."""
    return subprocess.run(
        [sys.executable, "-c", STARTED_AS_IT_IS_TOLD_TO_STOP.format(moment=moment)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(app.__file__).resolve().parent.parent)},
    ).stdout


def test_a_signal_during_the_fork_is_heeded() -> None:
    """Told to stop while it starts its daemon, a process stops, and leaves no child behind."""
    assert "stopped\n" == told_to_stop("before")
    assert "stopped\n" == told_to_stop("after_in_parent")
