"""`ggufd load`: ask a running daemon for a model, watch it load, show where the time went."""

import argparse
import json
import os
import signal
import sys
from typing import Final

from app.cli.progress import ProgressBar
from app.cli.summary import stage_table
from app.cli.text import printable
from app.cli.wishes import add_wish_arguments, wish_body
from app.client import Client
from app.settings import process_settings
from app.units import human_bytes

INTERRUPTED: Final = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, where the daemon is, and the flags of a request."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a path under one of the daemon's roots; one that exists here is sent as an absolute path",
    )
    parser.add_argument("--url", help="the daemon's address; default: what GGUFD_HOST and GGUFD_PORT say")
    parser.add_argument("--json", action="store_true", help="print the handle as JSON")
    add_wish_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, and leave the model loaded. An interruption cancels the load."""
    path = os.path.abspath(arguments.model) if os.path.exists(arguments.model) else arguments.model
    body = wish_body(arguments, path)
    with Client(arguments.url or process_settings().url) as daemon:
        handle = daemon.load(body)
        try:
            with ProgressBar() as progress:
                handle = daemon.wait(handle["id"], show=progress.show)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one does not wait for the daemon
            daemon.release(handle["id"])
            sys.stderr.write("interrupted: the load was cancelled\n")
            return INTERRUPTED
    if arguments.json:
        print(json.dumps(handle))
        return 0
    held = ", ".join(f"{printable(name)} {human_bytes(size)}" for name, size in handle["allocated_bytes"].items())
    print(f"{printable(handle['model'])} is {handle['state']}: handle {handle['id']}, on {held}\n")
    print(stage_table(handle))
    print(f"\nrelease it with: curl -X DELETE {daemon.url}/v1/handles/{handle['id']}")
    return 0
