"""One load, what it has come to, and the client's claim on the model it leaves. Mutable; guarded by the service's lock.

The lifecycle's record says where the load is; everything here only follows it and the signals of the running load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from app.errors import CancelledLoadError, GgufdError
from app.loading.lifecycle import (
    IN_PLACE,
    NANOSECONDS,
    UNDER_WAY,
    EventKind,
    LoadEvent,
    LoadRecord,
    LoadState,
    StageTime,
    advance,
)
from app.loading.negotiation import Fallback, MappingDecision
from app.loading.prepared import Prepared
from app.loading.request import PlanRequest
from app.loading.run import LoadedModel
from app.loading.signals import Allocated, FileRead, Freed, Placed, Planned, Remapped, Signal
from app.residency.handles import Failure, HandleView, LoadModeView, Released
from app.residency.uses import Uses

DECLARED: Final = "declared"
_PACE_SECONDS: Final = 0.5
"""How long bytes must have been copied before their pace says anything about those that are left."""
_ALMOST: Final = 1 - 2**-20  # progress before everything is in place, however few bytes are missing


class Claim:
    """A handle with its load. `stop` is set once its release was asked for; `closed` once it holds nothing any more."""

    def __init__(self, *, handle_id: str, model_id: str, request: PlanRequest, record: LoadRecord) -> None:
        self.id = handle_id
        self.model_id = model_id
        self.request = request
        self.record = record
        self.stop = threading.Event()
        self.closed = threading.Event()
        self.prepared: Prepared | None = None
        self.model: LoadedModel | None = None
        self.uses = Uses()
        self.failure: Failure | None = None
        self.fallbacks: tuple[Fallback, ...] = ()
        self.waiting: list[Callable[[HandleView], None]] = []
        self.told = False  # whether those who waited for the load's end have been told
        self.planned: dict[str, int] = {}
        self.allocated: dict[str, int] = {}
        self.freed: dict[str, int] = {}
        self.progress_at = record.created_at
        self._declared = frozenset(device.name for device in request.declared)
        self._mode = LoadModeView(requested=request.load_mode)
        self._warnings: tuple[str, ...] = ()
        self._placed = 0
        self._copied = 0
        self._transferring_at = 0.0
        self._uncopied_seconds = 0.0
        self._progress = 0.0

    @property
    def state(self) -> LoadState:
        """Where the load, or the model it left, is."""
        return self.record.state

    def apply(self, signal: Signal, wall: float) -> None:
        """Take in what the running load (or the service) tells at Unix time `wall`. Raises IllegalTransition."""
        match signal:
            case LoadEvent():
                nbytes = signal.nbytes or self._stage_bytes()
                self.record = advance(self.record, replace(signal, nbytes=nbytes))
                if self.record.state is LoadState.TRANSFERRING:
                    self._transferring_at = wall
            case Planned(prepared):
                self.prepared = prepared
                self.planned = dict(prepared.planned_bytes)
                self._warnings = prepared.warnings
                self._show_mode(prepared.mapping)
            case Remapped(mapping):
                assert self.prepared is not None, "a mapping follows a plan"
                self.prepared = replace(self.prepared, mapping=mapping)
                self._warnings = self.prepared.warnings
                self._show_mode(mapping)
            case Allocated(device, nbytes):
                self.allocated[device] = self.allocated.get(device, 0) + nbytes
            case Freed(device, nbytes):
                self.allocated[device] = self.allocated.get(device, 0) - nbytes
                if self.stop.is_set():  # what a load gives back by itself is not given back by a release
                    self.freed[device] = self.freed.get(device, 0) + nbytes
            case Placed(_, nbytes, copied):
                self._placed += nbytes
                if copied:
                    self._copied += nbytes
                else:  # mapped ranges are made present first, at a pace of their own
                    self._uncopied_seconds = max(wall - self._transferring_at, self._uncopied_seconds)
            case FileRead():
                pass
        self._progress = max(self._progress, self._share_in_place())
        self.progress_at = wall

    def fail(self, error: GgufdError, at_ns: int, wall: float) -> None:
        """End the load, cancelled or failed, with a failure that names the present stage."""
        kind = EventKind.CANCELLED if isinstance(error, CancelledLoadError) else EventKind.FAILED
        failure = Failure.of(error, self.record.state)
        self.apply(LoadEvent(kind=kind, at_ns=at_ns), wall)
        self.failure = failure

    def public_name(self, device: str) -> str:
        """A device's name for sums and metrics: clients may give devices of their own any name, so those have one."""
        return DECLARED if device in self._declared else device

    @property
    def released(self) -> Released:
        """What releasing this handle has given back so far; final once `closed` is set."""
        return Released(
            handle_id=self.id,
            state=self.record.state,
            released_bytes=sum(self.freed.values()),
            devices={name: self.freed[name] for name in self.planned if name in self.freed},
        )

    def view(self, now_ns: int) -> HandleView:
        """The handle at monotonic time `now_ns`, as any edge may show it."""
        record = self.record
        return HandleView(
            id=self.id,
            load_id=record.id,
            model_id=self.model_id,
            model=self.request.model,
            state=record.state,
            created_at=record.created_at,
            accepted_ns=record.accepted_ns,
            stages=tuple(self._with_bytes(stage) for stage in record.stages(now_ns)),
            duration_seconds=record.duration_ns(now_ns) / NANOSECONDS,
            progress=self._progress,
            eta_seconds=self._eta_seconds(now_ns),
            load_mode=self._mode,
            planned_bytes=dict(self.planned),
            allocated_bytes={name: self.allocated.get(name, 0) for name in self.planned},
            failure=self.failure,
            history=record.history,
            warnings=self._warnings,
        )

    def _show_mode(self, mapping: MappingDecision) -> None:
        self.fallbacks = mapping.fallbacks
        self._mode = LoadModeView(requested=mapping.requested, resolved=mapping.resolved, reasons=mapping.reasons)

    def _stage_bytes(self) -> int:
        """What the present stage has handled so far."""
        handled = {LoadState.ALLOCATING: sum(self.allocated.values()), LoadState.TRANSFERRING: self._placed}
        return handled.get(self.record.state, 0)

    def _with_bytes(self, stage: StageTime) -> StageTime:
        return stage if stage.ended else replace(stage, nbytes=self._stage_bytes())

    def _share_in_place(self) -> float:
        if self.record.state in IN_PLACE:
            return 1.0
        total = sum(self.planned.values())
        return min(self._placed / total, _ALMOST) if total else 0.0

    def _eta_seconds(self, now_ns: int) -> float | None:
        """What is left at the pace of copying so far; None until that can be told, and after the load."""
        if self.record.state in UNDER_WAY and self.record.state in IN_PLACE:
            return 0.0
        if self.record.state is not LoadState.TRANSFERRING or not self._copied:
            return None
        elapsed = (now_ns - self.record.entered_ns(LoadState.TRANSFERRING)) / NANOSECONDS - self._uncopied_seconds
        left = max(sum(self.planned.values()) - self._placed, 0)
        return elapsed * left / self._copied if elapsed >= _PACE_SECONDS else None
