"""Connections: how many at once, and how long a client may take. What is over is closed, the idlest first.

A client that says nothing costs a descriptor, and loads need descriptors too. So there is a most; a newcomer beyond it
takes the place of whoever has been silent longest. Where nobody is silent, a few more are let in, to whom only probes
are answered: a daemon that is busy must not look dead. And because all share one event loop, what a client sends is
parsed in small pieces, and a header that is large is not parsed at all.
"""

import asyncio
import logging
import re
import resource
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.api.answers import problem_answer
from app.api.context import ApiLimits
from app.api.crowded import only_probes
from app.errors import RequestError
from app.units import KIB, MIB

MAX_HEADER_BYTES: Final = 16 * KIB
"""A request's line and headers, with the blank line that ends them."""
RESERVE: Final = 32
"""How many connections beyond the most are let in for the probes."""
_MOST_DESCRIPTORS: Final = 65_536  # more than this process has a use for; some systems allow a milliard
_SHARE: Final = 2  # at most one in so many descriptors is a connection
_COMPLAIN_SECONDS: Final = 10.0
_READ_BYTES: Final = 8 * KIB  # of a body in tiny chunks, that takes the loop some 10 ms
_UNWANTED_BYTES: Final = MIB
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")  # as h11 finds a header's end
_log: Final = logging.getLogger("ggufd.http")


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as the system allows without asking; answers how many there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # then it has to do
            return soft
        return wanted
    return soft if soft != resource.RLIM_INFINITY else _MOST_DESCRIPTORS


@dataclass(slots=True, kw_only=True)
class Gate:
    """What the connections of one server share: the limits, and who is silent, the longest first.

    `strangers` have not had an answer yet; they are the first to go. Of the body of a request that was answered
    already, `unwanted_bytes` may still come.
    """

    most: int
    header_seconds: float
    read_seconds: float
    unwanted_bytes: int
    strangers: "dict[Connection, None]" = field(default_factory=dict)
    silent: "dict[Connection, None]" = field(default_factory=dict)

    def idlest(self) -> "Connection | None":
        """Whose place a newcomer takes; None if everybody waits for an answer."""
        return next(iter(self.strangers or self.silent), None)

    def drop(self, client: "Connection") -> None:
        """The client is not silent, or not there, any more."""
        self.strangers.pop(client, None)
        self.silent.pop(client, None)


def connection_class(limits: ApiLimits, descriptors: int) -> type[H11Protocol]:
    """The protocol for uvicorn's `http`: connections within `limits`, of a process with so many `descriptors`."""
    most = max(1, min(limits.max_connections, descriptors // _SHARE - RESERVE))
    shared = Gate(
        most=most,
        header_seconds=limits.header_seconds,
        read_seconds=limits.read_seconds,
        unwanted_bytes=max(_UNWANTED_BYTES, limits.max_body_bytes),
    )

    class Gated(Connection):
        gate = shared

    return Gated


class BoundedHeaders(h11.Connection):
    """HTTP from one client. h11 bounds only headers that have not ended yet; this one refuses large ones unparsed."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event. Raises RemoteProtocolError, also for a header that does not end within its bound."""
        if self.awaits_request:
            received, _ = self.trailing_data
            if len(received) > MAX_HEADER_BYTES and _BLANK_LINE.search(received, 0, MAX_HEADER_BYTES) is None:
                raise h11.RemoteProtocolError("the header is too large")
        return super().next_event()

    @property
    def awaits_request(self) -> bool:
        """Whether a header comes next, or has come in part."""
        return self.their_state is h11.IDLE


class Connection(H11Protocol):
    """One client's connection."""

    gate: ClassVar[Gate]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._arriving: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._unread = 0
        self._unwanted = 0
        self.conn: BoundedHeaders = BoundedHeaders(h11.SERVER, MAX_HEADER_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let the client in, in place of another if it must be."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # a selector's transport; others read less at a time as they are
            transport.max_size = _READ_BYTES
        gate = self.gate
        over = len(self.connections) - gate.most
        idlest = gate.idlest()
        if over > 0 and idlest is not None:
            idlest.leave()
        elif over > RESERVE:
            self.leave()
            return
        elif over > 0:
            self.app = only_probes(self.app)
        gate.strangers[self] = None
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Take what came, and expect the rest of it in time."""
        if not self._answered_early:
            self._unwanted = 0
        elif self._unwanted > self.gate.unwanted_bytes:
            self.transport.close()
            return
        else:
            self._unwanted += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._answering:
            self.gate.drop(self)
        if self.conn.their_state is h11.IDLE:
            if self._arriving is None:  # a header has a time for all of it, however small its pieces
                self._expect()
            return
        self._cancel_expected()
        if self.conn.their_state is h11.SEND_BODY:
            self._expect()

    def send_400_response(self, _msg: str) -> None:
        """What is no request is told so as everything else that is wrong, and the connection closed."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer has begun, and stays as it is
            self._refuse()
        if self._answering:  # whoever answers must not send, between here and `connection_lost`
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def on_response_complete(self) -> None:
        """From here on the client is silent, and uvicorn's own limit for that holds, until it sends again."""
        super().on_response_complete()
        if not self._answering and not self.transport.is_closing():
            self.gate.silent[self] = None

    def pause_writing(self) -> None:
        """The client does not read as fast as we write; it must read something in time."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.gate.read_seconds, self._require_read)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._cancel_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self.gate.drop(self)
        self._cancel_expected()
        self._cancel_reading()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Close the connection, without waiting for what the client has not read."""
        self.gate.drop(self)
        self.connections.discard(self)
        self.transport.abort()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _answered_early(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete

    def _refuse(self) -> None:
        """Answer 400, whether what came is no request or just too large."""
        error = RequestError("what came is no request in HTTP", field=None)
        if self.conn.awaits_request:  # h11 has not seen it, or it would not wait any more
            error = RequestError(
                f"the header of the request is larger than {MAX_HEADER_BYTES} bytes",
                field=None,
                limit_bytes=MAX_HEADER_BYTES,
            )
        refusal = problem_answer(error)
        headers = [*refusal.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=refusal.status_code, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(refusal.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")

    def _expect(self) -> None:
        """Close the connection unless more comes in time."""
        self._arriving = self.loop.call_later(self.gate.header_seconds, self.leave)

    def _cancel_expected(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _cancel_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _require_read(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            _log.warning("a client has read nothing of its answer for %g s: closed", self.gate.read_seconds)
            self.leave()
            return
        self._unread = unread
        self._reading = self.loop.call_later(self.gate.read_seconds, self._require_read)


class Complaints:
    """The event loop's exception handler: what the loop cannot accept it would tell thousands of times a second."""

    def __init__(self) -> None:
        self._told_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log the fault; one at accepting a connection at most every ten seconds, in a line."""
        fault = context.get("exception")
        if not isinstance(fault, OSError) or "accept" not in str(context.get("message")):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._told_at > _COMPLAIN_SECONDS:
            self._told_at = time.monotonic()
            _log.error("no connection can be accepted at the moment: %s", fault.strerror or fault)
