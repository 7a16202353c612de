"""The one object the edges talk to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.devices.facts import DeviceFacts
from app.loading.lifecycle import LoadState
from app.residency.handles import HandleView, Released

__all__ = ["HandleView", "Released", "ServiceLimits", "Snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """What the service takes on at once, and what it remembers. Times in seconds.

    `load_workers` loads run at a time; `queue_limit` more may wait. `history_limit` ended handles stay readable.
    `release_wait_seconds` is how long a release waits for its load to give up before it answers with the state so
    far. `stall_seconds` without progress, while loads wait, mean that the queue does not move.
    """

    load_workers: int = 2
    queue_limit: int = 64
    history_limit: int = 1000
    release_wait_seconds: float = 30.0
    stall_seconds: float = 60.0
    retry_after_seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole service at one moment, for metrics and listings. Sizes in bytes, times in Unix seconds.

    `handles` and `loads_in_progress` have an entry for every state and stage. `planned_bytes` are what the loads
    under way and the resident models want per device; `unreleased_bytes` what releases should have given back and did
    not. `last_progress_at` is the last progress of the running load that has waited longest for some; without running
    loads, the last progress of any.
    """

    devices: tuple[DeviceFacts, ...]
    handles: Mapping[LoadState, int]
    loads_in_progress: Mapping[LoadState, int]
    queue_length: int
    resident_models: int
    planned_bytes: Mapping[str, int]
    unreleased_bytes: Mapping[str, int]
    last_progress_at: float
