"""What a client sees of its claim on a model: a frozen view, taken under the service's lock, shown by any edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.errors import Fact, GgufdError
from app.loading.lifecycle import NANOSECONDS, HistoryEntry, LoadState, StageTime
from app.loading.negotiation import LoadMode, MappingReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a load ended without a model: the error's class and facts, without the exception and the frames it holds."""

    kind: type[GgufdError]
    code: str
    message: str
    facts: Mapping[str, Fact]
    stage: LoadState

    @classmethod
    def of(cls, error: GgufdError, stage: LoadState) -> Failure:
        """The failure that `error` became in `stage`."""
        return cls(kind=type(error), code=error.code, message=error.message, facts=dict(error.facts), stage=stage)

    def as_error(self) -> GgufdError:
        """The error again, with the fact `stage`; a fresh one each time, so that no two callers share a traceback."""
        return self.kind(self.message, code=self.code, **{**self.facts, "stage": self.stage.value})

    def as_json(self) -> dict[str, Any]:
        """`code`, `detail`, `stage` and the facts."""
        return {"code": self.code, "detail": self.message, **self.facts, "stage": self.stage.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadModeView:
    """How the file is read into place; `resolved` is None until it was negotiated."""

    requested: LoadMode
    resolved: LoadMode | None = None
    reasons: tuple[MappingReason, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """`requested`, `resolved`, and per device the mode and its reason."""
        return {
            "requested": self.requested.value,
            "resolved": None if self.resolved is None else self.resolved.value,
            "reasons": [
                {"device": reason.device, "mode": reason.mode.value, "reason": reason.reason} for reason in self.reasons
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleView:
    """One handle at one moment. Sizes in bytes, times in seconds unless the name says ns.

    `stages` are the load's; their times add up to its duration. `progress` never falls and is 1.0 only when every
    byte is in place. `eta_seconds` is None while it cannot be told. `lease` is None: the handle lives until released.
    """

    id: str
    load_id: str
    model_id: str
    model: str
    state: LoadState
    created_at: float
    accepted_ns: int
    stages: tuple[StageTime, ...]
    duration_seconds: float
    progress: float
    eta_seconds: float | None
    load_mode: LoadModeView
    planned_bytes: Mapping[str, int]
    allocated_bytes: Mapping[str, int]
    failure: Failure | None
    history: tuple[HistoryEntry, ...]
    warnings: tuple[str, ...] = ()
    lease: None = None

    def as_json(self) -> dict[str, Any]:
        """The handle as the API shows it; `error` is the failure's facts, for the edge to complete to a problem."""
        return {
            "id": self.id,
            "state": self.state.value,
            "load_id": self.load_id,
            "model_id": self.model_id,
            "model": self.model.encode("utf-8", "backslashreplace").decode(),  # a path may hold any bytes, JSON not
            "created_at": datetime.fromtimestamp(self.created_at, UTC).isoformat(timespec="milliseconds"),
            "duration_seconds": self.duration_seconds,
            "stages": [
                {"stage": stage.stage.value, "seconds": stage.seconds, "bytes": stage.nbytes} for stage in self.stages
            ],
            "progress": self.progress,
            "eta_seconds": self.eta_seconds,
            "load_mode": self.load_mode.as_json(),
            "planned_bytes": dict(self.planned_bytes),
            "allocated_bytes": dict(self.allocated_bytes),
            "warnings": list(self.warnings),
            "error": None if self.failure is None else self.failure.as_json(),
            "history": [
                {
                    "event": None if entry.event is None else entry.event.value,
                    "state": entry.state.value,
                    "at_seconds": (entry.at_ns - self.accepted_ns) / NANOSECONDS,
                }
                for entry in self.history
            ],
            "lease": self.lease,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What releasing a handle came to: the same answer however often it is asked.

    `state` is `released` or `cancelled`; `failed` for a load that had failed by itself; `releasing` or the stage under
    way only when the end did not come within the time the caller was willing to wait. `released_bytes` are the
    accounted bytes that this handle's release gave back, over all devices, each of them in `devices`.
    """

    handle_id: str
    state: LoadState
    released_bytes: int
    devices: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """`id`, `state`, `released_bytes`, and the bytes per device."""
        return {
            "id": self.handle_id,
            "state": self.state.value,
            "released_bytes": self.released_bytes,
            "devices": dict(self.devices),
        }
