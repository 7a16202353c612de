"""The states of a load and its model, in one table; and the record that carries its story.

    queued → reading → planning → negotiating → allocating → transferring → verifying → ready → releasing → released
       └──────────┴─────────┴───────────┴──────────┴─────────────┴───────────┴→ failed, cancelled

A stage lasts from the event that entered its state to the event that left it, so stages partition the load's time by
construction: there is no other clock. Times are integers of nanoseconds inside and seconds only where they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from app.errors import ConflictError

NANOSECONDS: Final = 1_000_000_000


class LoadState(StrEnum):
    """Where a load, or the model it left, is."""

    QUEUED = "queued"
    READING = "reading"
    PLANNING = "planning"
    NEGOTIATING = "negotiating"
    ALLOCATING = "allocating"
    TRANSFERRING = "transferring"
    VERIFYING = "verifying"
    READY = "ready"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"
    CANCELLED = "cancelled"


class EventKind(StrEnum):
    """What can happen to a load."""

    STARTED = "started"
    READ = "read"
    PLANNED = "planned"
    NEGOTIATED = "negotiated"
    ALLOCATED = "allocated"
    MOVED = "moved"
    VERIFIED = "verified"
    RELEASE_ASKED = "release_asked"
    FREED = "freed"
    FAILED = "failed"
    CANCELLED = "cancelled"


STAGES: Final = (
    LoadState.QUEUED,
    LoadState.READING,
    LoadState.PLANNING,
    LoadState.NEGOTIATING,
    LoadState.ALLOCATING,
    LoadState.TRANSFERRING,
    LoadState.VERIFYING,
)
"""The states of a load under way, in order: the stages whose times make up its duration."""

_STEPS: Final = (
    EventKind.STARTED,
    EventKind.READ,
    EventKind.PLANNED,
    EventKind.NEGOTIATED,
    EventKind.ALLOCATED,
    EventKind.MOVED,
    EventKind.VERIFIED,
)
_ENDS: Final = {EventKind.FAILED: LoadState.FAILED, EventKind.CANCELLED: LoadState.CANCELLED}

TRANSITIONS: Final[Mapping[LoadState, Mapping[EventKind, LoadState]]] = {
    **{
        state: {step: following, **_ENDS}
        for state, step, following in zip(STAGES, _STEPS, (*STAGES[1:], LoadState.READY), strict=True)
    },
    LoadState.READY: {EventKind.RELEASE_ASKED: LoadState.RELEASING},
    LoadState.RELEASING: {EventKind.FREED: LoadState.RELEASED},
    LoadState.RELEASED: {},
    LoadState.FAILED: {},
    LoadState.CANCELLED: {},
}

UNDER_WAY: Final = frozenset(STAGES)
TERMINAL: Final = frozenset(state for state, ways in TRANSITIONS.items() if not ways)
HOLDING: Final = frozenset({LoadState.READY, LoadState.RELEASING})
"""The states in which a resident model exists."""
IN_PLACE: Final = frozenset({LoadState.VERIFYING, LoadState.READY, LoadState.RELEASING, LoadState.RELEASED})
"""The states in which every planned byte has reached its device (and may have left it again)."""

HEADER_STAGES: Final = frozenset({LoadState.READING, LoadState.PLANNING})
"""The stages in which a file's header and metadata are judged."""


def takes(state: LoadState, kind: EventKind) -> bool:
    """Whether the table lets `kind` happen in `state`."""
    return kind in TRANSITIONS[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEvent:
    """Something happened at `at_ns` (monotonic nanoseconds). `nbytes` is what the stage that it ends has handled."""

    kind: EventKind
    at_ns: int
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One line of the story: the event, the state it led to, when (monotonic ns), and the bytes of the ended stage."""

    event: EventKind | None
    state: LoadState
    at_ns: int
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One stage's part of a load: its duration in ns and the bytes it handled. `ended` is False for the present one."""

    stage: LoadState
    nanoseconds: int
    nbytes: int
    ended: bool

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.nanoseconds / NANOSECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """What is known of one load. `created_at` is the wall clock's (Unix seconds); all else is monotonic ns."""

    id: str
    state: LoadState
    created_at: float
    history: tuple[HistoryEntry, ...]

    @property
    def accepted_ns(self) -> int:
        """When the load was accepted."""
        return self.history[0].at_ns

    @property
    def changed_ns(self) -> int:
        """When the present state was entered."""
        return self.history[-1].at_ns

    def entered_ns(self, state: LoadState) -> int:
        """When `state`, which the load has been in, was entered."""
        return next(entry.at_ns for entry in self.history if entry.state is state)

    def stages(self, now_ns: int) -> tuple[StageTime, ...]:
        """The load's stages so far; their nanoseconds add up to `duration_ns(now_ns)` exactly."""
        times = []
        for index, entry in enumerate(self.history):
            if entry.state not in UNDER_WAY:
                break
            following = self.history[index + 1] if index + 1 < len(self.history) else None
            until = max(now_ns, entry.at_ns) if following is None else following.at_ns
            times.append(
                StageTime(
                    stage=entry.state,
                    nanoseconds=until - entry.at_ns,
                    nbytes=0 if following is None else following.nbytes,
                    ended=following is not None,
                )
            )
        return tuple(times)

    def duration_ns(self, now_ns: int) -> int:
        """From acceptance to the end of the load (ready, failed or cancelled), or to `now_ns` while it is under way."""
        for entry in self.history:
            if entry.state not in UNDER_WAY:
                return entry.at_ns - self.accepted_ns
        return max(now_ns, self.changed_ns) - self.accepted_ns

    @property
    def release_ns(self) -> int:
        """How long a released model took to give its memory back, from the asking."""
        return self.entered_ns(LoadState.RELEASED) - self.entered_ns(LoadState.RELEASING)

    @property
    def failed_stage(self) -> LoadState | None:
        """The stage a failed or cancelled load ended in; None for all others."""
        return self.history[-2].state if self.state in (LoadState.FAILED, LoadState.CANCELLED) else None

    def story(self) -> str:
        """The events so far in one line: `queued → started: reading → failed: failed`."""
        return " → ".join(
            entry.state if entry.event is None else f"{entry.event}: {entry.state}" for entry in self.history
        )


class IllegalTransition(ConflictError):  # noqa: N818 -- named after what it is; the tree's suffix is its parent's
    """The event cannot happen in this state. Facts: `load_id`, `state`, `event`, and `story`, the events so far."""


def open_record(load_id: str, *, created_at: float, at_ns: int) -> LoadRecord:
    """A load that has just been accepted: queued."""
    first = HistoryEntry(event=None, state=LoadState.QUEUED, at_ns=at_ns)
    return LoadRecord(id=load_id, state=LoadState.QUEUED, created_at=created_at, history=(first,))


def advance(record: LoadRecord, event: LoadEvent) -> LoadRecord:
    """The record after `event`; refuses with IllegalTransition, before anything is built, what the table lacks.

    An event stamped earlier than the last one (two threads, one clock) counts as simultaneous with it.
    """
    following = TRANSITIONS[record.state].get(event.kind)
    if following is None:
        raise IllegalTransition(
            f'load {record.id} cannot take "{event.kind}" while {record.state}; its story: {record.story()}',
            code="illegal_transition",
            load_id=record.id,
            state=record.state.value,
            event=event.kind.value,
            story=[entry.state.value for entry in record.history],
        )
    at_ns = max(event.at_ns, record.changed_ns)
    entry = HistoryEntry(event=event.kind, state=following, at_ns=at_ns, nbytes=event.nbytes)
    return replace(record, state=following, history=(*record.history, entry))
