"""`ggufd quickstart`: the whole thing once. Fetch a model, start a daemon, load over HTTP, show it, stop."""

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from app.cli.child import Child, own_daemon
from app.cli.progress import ProgressBar
from app.cli.sample import LINK_NAME, obtain
from app.cli.summary import plan_summary, stage_table
from app.cli.text import line_width, wrapped
from app.client import Client
from app.errors import DeviceError, RequestError
from app.settings import cache_folder, process_settings
from app.units import human_bytes, human_seconds

BODY: Final = {"model": LINK_NAME, "split_mode": "tensor", "devices": ["host0", "host1"]}
OTHER_BODY: Final = {**BODY, "tensor_split": [3, 1]}
_INTERRUPTED: Final = 130
_TERMINATED: Final = 143


class _Terminated(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C, from someone else."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether to stay."""
    parser.add_argument("--serve", action="store_true", help="keep the daemon in the foreground afterwards")
    parser.add_argument("--port", help="with --serve, the port to listen on; default: what GGUFD_PORT says, else 8090")
    parser.add_argument(
        "--offline", action="store_true", help="fetch nothing: use what was fetched before, or make a model"
    )
    parser.add_argument("--verbose", action="store_true", help="show what pip says while it fetches the model")
    parser.add_argument("--folder", type=Path, help="where the model is kept; default: ggufd/ in the XDG cache folder")


def run(arguments: argparse.Namespace) -> int:
    """Show it; answers 0, with nothing left running.

    Raises RequestError for a port that is none, and for a flag that would change nothing.
    """
    if arguments.port and not arguments.serve:
        raise RequestError("quickstart: --port does nothing without --serve", field="--port")
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without it
    try:
        return _show(arguments)
    except KeyboardInterrupt as told:
        sys.stderr.write("ggufd: interrupted; nothing is left running\n")
        return _TERMINATED if isinstance(told, _Terminated) else _INTERRUPTED


def _show(arguments: argparse.Namespace) -> int:
    port = str(process_settings({"port": arguments.port} if arguments.port else None).port)
    folder = arguments.folder.absolute() if arguments.folder else cache_folder()
    _say("model")
    link = obtain(folder, _say_wrapped, offline=arguments.offline, verbose=arguments.verbose)
    flags = ["--host", "127.0.0.1", "--port", port if arguments.serve else "0"]
    flags += ["--model-roots", str(folder), "--host-devices", "2", "--log-level", "warning"]
    ended_by_itself = None
    with own_daemon(flags) as child, Client(child.url) as daemon:
        _say(f"\ndaemon\n  {child.url} with the devices " + ", ".join(d["name"] for d in daemon.devices()))
        handle, plan = _load(daemon)
        _say(f"\n{plan_summary(plan)}")
        if arguments.serve:
            ended_by_itself = _stay(child, handle["id"])
        else:
            released = daemon.release(handle["id"])
            _say(f"\nreleased {human_bytes(released['released_bytes'])}; mirrored tensors were on every device")
    if ended_by_itself is not None or child.process.returncode != 0:
        raise DeviceError(
            f"the daemon ended with {child.process.returncode}, and nobody had told it to", operation="stop"
        )
    _say("the daemon has stopped; nothing is left running")
    if not arguments.serve:
        _say(f"\nwhat to try next\n{_next_steps(link.resolve(), port)}")
    return 0


def _load(daemon: Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load by the ordinary calls, and show where the time went; answers the handle and its plan."""
    _say("\nload\n  POST /v1/handles")
    _say(wrapped(json.dumps(BODY), line_width(), indent="    "))
    accepted = daemon.load(BODY)
    with ProgressBar() as progress:
        handle = daemon.wait(accepted["id"], show=progress.show)
    held = ", ".join(f"{name} {human_bytes(size)}" for name, size in handle["allocated_bytes"].items())
    _say(f"  {handle['state']} after {human_seconds(handle['duration_seconds'])}: handle {handle['id']}")
    _say(f"  on {held}\n\n{stage_table(handle)}")
    return handle, daemon.handle_plan(handle["id"])


def _stay(child: Child, handle_id: str) -> int | None:
    """Wait until told to stop (None), or until the daemon ends by itself: its exit code."""
    try:
        _say("\nthe daemon stays until you press Ctrl-C. Try these in another terminal:\n")
        _say("\n".join(f"  {line}" for line in curl_lines(child.url, handle_id)))
        return child.process.wait()
    except KeyboardInterrupt:
        _say("\nstopping")
        return None


def curl_lines(url: str, handle_id: str) -> list[str]:
    """What to ask the daemon at `url` that has loaded `handle_id`."""
    json_header = "-H 'Content-Type: application/json'"
    return [
        f"curl -s {url}/v1/handles/{handle_id}",
        f"curl -s {url}/v1/handles/{handle_id}/plan",
        f"curl -s {url}/v1/devices",
        f"curl -s {url}/v1/plans {json_header} -d '{json.dumps(OTHER_BODY)}'",
        f"curl -s {url}/v1/handles {json_header} -H 'Prefer: wait=10' -d '{json.dumps(OTHER_BODY)}'",
        f"curl -s {url}/metrics",
        f"curl -s -X DELETE {url}/v1/handles/{handle_id}",
    ]


def _next_steps(model: Path, port: str) -> str:
    me, path = _own_name(), shlex.quote(str(model))
    steps = [
        (f"{me} inspect {path}", "what is in the file"),
        (
            f"{me} plan {path} --split-mode tensor --devices 8GiB,4GiB --tensor-split 2,1",
            "plan for devices you don't have",
        ),
        (f"{me} quickstart --serve", f"keep the daemon on port {port}, with curl lines to talk to it"),
    ]
    return "\n".join(f"  {line}\n      {what}" for line, what in steps)


def _own_name() -> str:
    """How this command was called, so that what is printed can be typed."""
    called = Path(sys.argv[0])
    return shlex.quote(str(called)) if called.name == "ggufd" else f"{shlex.quote(sys.executable)} -m app"


def _say(line: str) -> None:
    print(line, flush=True)


def _say_wrapped(line: str) -> None:
    _say(wrapped(line, line_width(), indent="  ", hanging="    "))


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated
