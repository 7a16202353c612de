"""What the service tells its observers, outside its lock: facts that have happened, each a small frozen value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.loading.negotiation import Fallback
from app.loading.signals import FileRead, Placed
from app.planner.plan import SplitMode
from app.residency.handles import HandleView


@dataclass(frozen=True, slots=True)
class LoadStarted:
    """A load left the queue after `queue_seconds`."""

    queue_seconds: float


@dataclass(frozen=True, slots=True)
class FellBack:
    """A load went on in another mode."""

    fallback: Fallback


@dataclass(frozen=True, slots=True)
class LoadEnded:
    """A load became ready, failed or was cancelled.

    `plan_errors` has per kind of device what was allocated, padding included, over what was planned, less one.
    """

    view: HandleView
    split_mode: SplitMode
    plan_errors: Mapping[str, float]


class PlanOutcome(StrEnum):
    """What came of asking for a plan: one that fits, one that needs more than is free, or none."""

    FITS = "fits"
    TOO_LARGE = "too_large"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlanEnded:
    """A plan was asked for and answered after `seconds`; `reason` is why it was refused (a code), else `none`."""

    outcome: PlanOutcome
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HeaderRejected:
    """A file's header or metadata was refused; `reason` is the error's code."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A model was released; `unreleased` has the bytes per device that did not come back."""

    seconds: float
    unreleased: Mapping[str, int]


Notice = LoadStarted | FileRead | Placed | FellBack | LoadEnded | PlanEnded | HeaderRejected | Unloaded
LoadObserver = Callable[[Notice], None]
