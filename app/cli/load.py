"""`ggufd load`: ask a running daemon for a model, watch it load, show where the time went."""

import argparse
import os
import secrets
import signal
import sys
from typing import Final

from app.api.encoding import encode
from app.cli.progress import ProgressBar
from app.cli.summary import mode_table, stage_table, warning_lines
from app.cli.text import line_width, printable, wrapped
from app.cli.wishes import add_wish_arguments, wish_body
from app.client import Client
from app.errors import RequestError
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
    parser.add_argument("--json", action="store_true", help="print the handle as JSON, as the daemon answers it")
    add_wish_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, and leave the model loaded. An interruption cancels the load."""
    path = os.path.abspath(arguments.model) if os.path.exists(arguments.model) else arguments.model
    body = wish_body(arguments, path)
    if arguments.url is not None and not arguments.url.startswith(("http://", "https://")):
        raise RequestError(f"--url: {arguments.url!r} does not begin with http:// or https://", field="--url")
    with Client(arguments.url or process_settings().url) as daemon:
        handle, key = None, secrets.token_hex(16)
        try:
            handle = daemon.load(body, idempotency_key=key)
            with ProgressBar() as progress:
                handle = daemon.wait(handle["id"], show=progress.show)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one does not wait for the daemon
            # The daemon may have the request although its answer was not awaited: the key finds what became of it.
            handle = handle or daemon.load(body, idempotency_key=key)
            daemon.release(handle["id"])
            sys.stderr.write("interrupted: the load was cancelled\n")
            return INTERRUPTED
    if arguments.json:
        sys.stdout.buffer.write(encode(handle))
        return 0
    width = line_width()
    print(f"{printable(handle['model'], 400)} is {handle['state']}: handle {handle['id']}")
    held = ", ".join(f"{printable(name)} {human_bytes(size)}" for name, size in handle["allocated_bytes"].items())
    print(wrapped(f"on {held}", width, indent="  ", hanging="    "))
    declared = [printable(one["name"]) for one in body.get("devices", ()) if isinstance(one, dict)]
    if declared:
        rehearsal = f"a rehearsal on declared devices: {', '.join(declared)} count every byte and keep none"
        print(wrapped(rehearsal, width, indent="  ", hanging="    "))
    print(f"\n{stage_table(handle)}\n\n{mode_table(handle['load_mode'], width)}")
    if handle["warnings"]:
        print("\n" + warning_lines(handle["warnings"], width))
    print(f"\nrelease it with: curl -X DELETE {daemon.url}/v1/handles/{handle['id']}")
    return 0
