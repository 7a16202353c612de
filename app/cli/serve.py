"""`ggufd serve`: the daemon in the foreground, until SIGTERM or SIGINT; then it gives everything back and ends with 0.

On a signal new work is refused (503 `shutting_down`), loads are cancelled or, if the settings say so, let finish,
resident models are freed, clients that wait get their answers, and only then the port is closed: all within
`shutdown_seconds`, and with 0 whatever had to be left to the operating system (`stopping`). A second SIGINT does not
wait for loads or memory.
"""

import argparse
import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import uvicorn

from app.cli.collecting import keep_what_is, no_collections
from app.cli.connections import Complaints, connection_class, raise_descriptor_limit
from app.cli.stopping import Stopping
from app.devices.facts import DeviceFacts
from app.errors import RequestError
from app.main import Daemon, build
from app.settings import FINISH, SETTINGS, Settings, process_settings
from app.units import human_bytes

MISUSED: Final = 2
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_KEEP_ALIVE_SECONDS: Final = 30
_WAITING_CLIENTS: Final = 1024
_ACCEPTED_AT_ONCE: Final = 16  # before any of them is looked at: a rush must not take all descriptors
_GRACE_SECONDS: Final = 5  # for clients to take their answers, of a shutdown's time at most
_GRACE_SHARE: Final = 1 / 8  # of a shutdown's time
_SPARE_SECONDS: Final = 0.25  # for the steps between, of at most half as large a share
_FINISH_SHARE: Final = 3 / 4
_POLL_SECONDS: Final = 0.02
_BREAK_OFF_SECONDS: Final = 0.2  # of the half second that an end at once may take
_OTHER_PORTS_DO: Final = (errno.EADDRINUSE, errno.EACCES)
_BROKEN_OFF: Final = "ASGI callable returned without completing response."  # meant so, and told with its reason
_log: Final = logging.getLogger("ggufd.serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every setting as a flag."""
    for setting in SETTINGS:
        default = f"default: {setting.default}" if setting.default else "no default"
        parser.add_argument(
            setting.flag,
            dest=f"setting_{setting.name}",
            metavar=setting.unit.upper(),
            help=f"{setting.meaning} ({default}; or {setting.variable})".replace("%", "%%"),
        )


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop. 2 if a setting makes no sense, 1 if the address cannot be listened on."""
    told = {setting.name: getattr(arguments, f"setting_{setting.name}") for setting in SETTINGS}
    try:
        settings = process_settings({name: text for name, text in told.items() if text is not None}, serving=True)
        with no_collections():
            daemon = build(settings)
            keep_what_is()
    except RequestError as error:
        sys.stderr.write(f"ggufd serve: {error.message}\n")
        return MISUSED
    logging.basicConfig(level=settings.log_level.upper(), format=_LOG_FORMAT, stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _BROKEN_OFF)
    try:
        listening = listen(settings.host, settings.port)
    except OSError as error:
        why = error.strerror or error
        other = "; --port takes another, 0 a free one" if error.errno in _OTHER_PORTS_DO else ""
        sys.stderr.write(f"ggufd serve: cannot listen on {settings.host}:{settings.port}: {why}{other}\n")
        daemon.service.close(settings.shutdown_seconds)
        return 1
    for level, line in introduction(settings, daemon.service.devices()):
        _log.log(level, "%s", line)
    code = serve(daemon, listening, settings)
    _log.info("stopped")
    return code


def introduction(settings: Settings, devices: Sequence[DeviceFacts]) -> Iterator[tuple[int, str]]:
    """What whoever starts the daemon should know, each line with its level."""
    if settings.model_roots:
        yield logging.INFO, "model roots: " + ", ".join(map(str, settings.model_roots))
    else:
        yield logging.WARNING, "no model roots: every load will be refused; set --model-roots or GGUFD_MODEL_ROOTS"
    yield logging.INFO, "devices: " + ", ".join(f"{one.name} {human_bytes(one.memory_bytes)}" for one in devices)
    if not _is_loopback(settings.host):
        yield (
            logging.WARNING,
            f"listening on {settings.host}: whoever reaches this port may load and release models, unasked",
        )


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket for `host` and `port` (0: a free one). Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_WAITING_CLIENTS)
    except OSError:
        listening.close()
        raise
    return listening


def serve(daemon: Daemon, listening: socket.socket, settings: Settings) -> int:
    """Serve `daemon` on `listening`, print where, and close everything when told to stop."""
    grace = min(_GRACE_SECONDS, settings.shutdown_seconds * _GRACE_SHARE)
    config = uvicorn.Config(
        daemon.app,
        http=connection_class(settings.api, raise_descriptor_limit()),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace,  # type: ignore[arg-type]  # it is only ever a timeout, so fractions do
    )
    finish = settings.shutdown_seconds * _FINISH_SHARE if settings.shutdown_loads == FINISH else 0.0
    spare = min(_SPARE_SECONDS, settings.shutdown_seconds * _GRACE_SHARE / 2)
    server = _Server(config, daemon, settings.shutdown_seconds - grace - spare, finish)
    stopping = Stopping(settings.shutdown_seconds, server.begin_stop, server.hurry_stop)
    stopping.listen()
    server.run(sockets=[listening])
    if not server.closed_in_time:
        stopping.end_now()
    stopping.await_threads()
    stopping.deafen()
    return 0


class _Server(uvicorn.Server):
    """uvicorn's server, taught to give back what it serves before it stops listening, and to end with 0."""

    def __init__(self, config: uvicorn.Config, daemon: Daemon, deadline_seconds: float, finish_seconds: float) -> None:
        super().__init__(config)
        self._daemon = daemon
        self._deadline_seconds = deadline_seconds
        self._finish_seconds = finish_seconds
        self._told_by = ""
        self.closed_in_time = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike the original, leave the signals to whoever has them already (`Stopping`), before and after."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and say where."""
        asyncio.get_running_loop().set_exception_handler(Complaints())
        await super().startup(sockets)
        assert sockets is not None
        sockets[0].listen(_WAITING_CLIENTS)  # the loop's own limit is about what it accepts in one go
        host, port = sockets[0].getsockname()[:2]
        sys.stdout.write(f"ggufd listens on http://{f'[{host}]' if ':' in host else host}:{port}\n")
        sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Give everything back while still answering; then stop listening."""
        _log.info("%s: loads end, models are freed, then this stops", self._told_by)
        closing = threading.Thread(target=self._close, name="shutdown", daemon=True)
        closing.start()
        while closing.is_alive() and not self.force_exit:
            await asyncio.sleep(_POLL_SECONDS)
        if self.force_exit or not self.closed_in_time:  # they would wait in vain
            await self._break_off()
        await super().shutdown(sockets)

    def begin_stop(self, name: str) -> None:
        """Stop when the loop comes round; called from a signal's handler."""
        self._told_by = name
        self.should_exit = True

    def hurry_stop(self) -> None:
        """Wait for nobody; called from a signal's handler."""
        self.force_exit = True

    def _close(self) -> None:
        self.closed_in_time = self._daemon.service.close(self._deadline_seconds, finish_seconds=self._finish_seconds)

    async def _break_off(self) -> None:
        """Have every request under way answer that the daemon stops."""
        under_way = [*self.server_state.tasks]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=_BREAK_OFF_SECONDS)
