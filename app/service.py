"""The one object the edges talk to: plans, loads, shows and releases models. Synchronous; callable from any thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from app.architectures.registry import Catalog
from app.devices.facts import DeviceFacts
from app.errors import BusyError, ConflictError, FileError, GgufdError, NotFoundError
from app.loading.lifecycle import HOLDING, NANOSECONDS, STAGES, TERMINAL, UNDER_WAY, EventKind, LoadState, takes
from app.loading.request import PlanRequest, check_request
from app.loading.run import World, check_loadable, check_path, prepare
from app.modelfile.shortage import shortage
from app.modelfile.warmth import Warmth
from app.residency.claim import Claim
from app.residency.description import Description
from app.residency.files import FilePage, ModelFiles
from app.residency.handles import HandleView, Released
from app.residency.keeper import Keeper, Told, internal_error, log_fault
from app.residency.notices import HeaderRejected, LoadObserver, Notice, PlanEnded, PlanOutcome
from app.residency.reading import ModelReader
from app.residency.registry import PlanArchive

__all__ = ["HandleView", "LoadObserver", "LoaderService", "Notice", "Released", "ServiceLimits", "Snapshot"]


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
class ResidentModel:
    """A model that holds memory: its path as it was asked for, how long its load took, its bytes per device."""

    model: str
    load_seconds: float
    allocated_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole service at one moment, for metrics and listings. Sizes in bytes, times in Unix seconds.

    `handles` and `loads_in_progress` have an entry for every state and stage. `planned_bytes` are what the loads
    under way and the resident models want per device; `unreleased_bytes` what ended loads and models did not give
    back. `last_progress_at` is the last progress of the running load that has waited longest for some; without
    running loads, the last progress of any (at first, the service's start). `resident` are the models themselves, the
    oldest first.
    """

    devices: tuple[DeviceFacts, ...]
    handles: Mapping[LoadState, int]
    loads_in_progress: Mapping[LoadState, int]
    queue_length: int
    resident_models: int
    planned_bytes: Mapping[str, int]
    unreleased_bytes: Mapping[str, int]
    last_progress_at: float
    resident: tuple[ResidentModel, ...] = ()


class LoaderService:
    """The service over one world. It owns threads: `close` it. `wall` gives Unix seconds."""

    def __init__(
        self,
        world: World,
        *,
        limits: ServiceLimits | None = None,
        observers: Sequence[LoadObserver] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._world = world
        self._limits = limits or ServiceLimits()
        self._wall = wall
        self._files = ModelFiles(world)
        self._keeper = Keeper(
            world,
            load_workers=self._limits.load_workers,
            queue_limit=self._limits.queue_limit,
            history_limit=self._limits.history_limit,
            observers=observers,
            wall=wall,
        )

    def plan(self, request: PlanRequest) -> dict[str, Any]:
        """The plan a load of `request` would follow, with no side effect, whether or not it fits.

        Raises RequestError, NotFoundError, AccessError, FileError, MetadataError, PlanError.
        """
        started = self._world.clock()
        outcome, reason = PlanOutcome.REFUSED, "internal"
        try:
            check_request(request, tuple(self._world.backends))
            prepared = prepare(request, self._world)
            answer = prepared.as_json()
            outcome, reason = (PlanOutcome.FITS if prepared.plan.fits else PlanOutcome.TOO_LARGE), "none"
        except GgufdError as error:
            reason = error.code
            if isinstance(error, FileError):
                self._keeper.tell(HeaderRejected(error.code))
            raise
        except Exception as error:
            log_fault("a plan ended in an error nobody foresaw")
            failure = shortage(error, "the plan") or internal_error("the plan")
            reason = failure.code
            raise failure from error
        finally:
            self._keeper.tell(PlanEnded(outcome, reason, (self._world.clock() - started) / NANOSECONDS))
        return answer

    def submit(
        self, request: PlanRequest, *, idempotency_key: str | None = None, on_end: Told | None = None
    ) -> HandleView:
        """Accept a load; answers its handle, queued. The same key with the same request answers the same handle.

        `on_end` is called once with the handle as its load left it, from a load's thread or before this returns.
        Raises what is wrong with the request, the path's own faults (missing or outside the roots, no regular file,
        unreadable), ConflictError `idempotency_conflict`, BusyError `queue_full` or `shutting_down`. All else becomes
        the load's failure.
        """
        check_request(request, tuple(self._world.backends))
        check_loadable(request)
        known = self._keeper.known(idempotency_key, request, on_end)
        if known is not None:
            return known
        check_path(request.model, self._world.roots)
        return self._keeper.accept(request, idempotency_key, self._limits.retry_after_seconds, on_end)

    def release(self, handle_id: str, *, wait_seconds: float | None = None) -> Released:
        """Give the handle up: unloads a ready model, cancels a load under way, changes nothing that has ended.

        Waits for the end, so that the answer is final and every further call gives the same one; `wait_seconds`
        bounds that. Raises NotFoundError `handle_not_found`.
        """
        return self._keeper.release(
            handle_id, self._limits.release_wait_seconds if wait_seconds is None else wait_seconds
        )

    def handle(self, handle_id: str) -> HandleView:
        """One handle now. Raises NotFoundError `handle_not_found`."""
        with self._keeper.claims() as claims:
            return claims.get(handle_id).view(self._world.clock())

    def handles(self, offset: int = 0, limit: int | None = None) -> tuple[list[HandleView], int]:
        """Handles `[offset, offset + limit)` in the order they were made, and how many there are.

        The ended ones as far as history goes.
        """
        with self._keeper.claims() as claims:
            found, count = claims.page(offset, limit), len(claims)
        views = []
        for handle_id in found:  # one at a time: a long page must not keep running loads from reporting
            with suppress(NotFoundError):  # forgotten in the meantime
                views.append(self.handle(handle_id))
        return views, count

    def handle_plan(self, handle_id: str) -> dict[str, Any]:
        """The plan a handle's load follows or followed.

        Raises BusyError `still_loading` until there is one, NotFoundError if the load ended without, or too long ago.
        """
        with self._keeper.claims() as claims:
            claim = claims.get(handle_id)
            prepared, state = (claim.prepared if isinstance(claim, Claim) else None), claim.state
            packed = self._keeper.archive.get(handle_id)
        if prepared is not None:
            return prepared.as_json()
        if packed is not None:
            return PlanArchive.unpack(packed)
        if state in UNDER_WAY:
            raise BusyError(
                f"the load is {state}; there is no plan yet",
                code="still_loading",
                retry_after_seconds=self._limits.retry_after_seconds,
            )
        raise NotFoundError(f"the load is {state} and came to no plan, or its plan is no longer kept")

    def reader(self, handle_id: str) -> ModelReader:
        """What reads the model of a ready handle: its tensors, embeddings, metadata, vocabulary.

        Raises NotFoundError `handle_not_found`, BusyError `still_loading`, ConflictError `not_resident` for a load
        that has left no model, or whose model was released.
        """
        with self._keeper.claims() as claims:
            claim = claims.get(handle_id)
            state = claim.state
            if isinstance(claim, Claim) and claim.model is not None and takes(state, EventKind.RELEASE_ASKED):
                return ModelReader(claim.model, claim.uses)
        if state in UNDER_WAY:
            raise BusyError(
                f"the load is {state}; there is nothing to read yet",
                code="still_loading",
                retry_after_seconds=self._limits.retry_after_seconds,
            )
        raise ConflictError(
            f"the handle is {state}: it holds no model", code="not_resident", handle_id=handle_id, state=state.value
        )

    def when_ended(self, handle_id: str, callback: Told) -> None:
        """Call `callback` once the load is ready, failed or cancelled: at once if it is, else from a load's thread.

        Raises NotFoundError `handle_not_found`.
        """
        self._keeper.when_ended(handle_id, callback)

    def forget(self, handle_id: str, callback: Told) -> None:
        """Do not call what `submit` or `when_ended` was given any more."""
        self._keeper.forget(handle_id, callback)

    def devices(self) -> list[DeviceFacts]:
        """Every device of the daemon, as it is now."""
        return [backend.facts() for backend in self._world.backends.values()]

    def architectures(self) -> Catalog:
        """What the daemon can load."""
        return self._world.catalog

    def files(self, offset: int, limit: int) -> FilePage:
        """A page of the models under the roots, with their facts; one that cannot be loaded has its problem."""
        return self._files.page(offset, limit)

    def file(self, model: str) -> tuple[Description, Warmth]:
        """What the model at a path is, whether or not it can be loaded, and how warm it is.

        Raises NotFoundError `model_not_found`, AccessError, FileError where there is no file to describe.
        """
        return self._files.describe(model)

    def snapshot(self) -> Snapshot:
        """The whole service at one moment."""
        devices = tuple(self.devices())
        planned: Counter[str] = Counter()
        with self._keeper.claims() as claims:
            states = claims.states()
            for claim in claims.live():
                if claim.state not in TERMINAL:  # as it is for a moment, before it is counted among the ended
                    for name, nbytes in claim.planned.items():
                        planned[claim.public_name(name)] += nbytes
            resident = tuple(_resident(claim) for claim in claims.live() if claim.state in HOLDING)
        return Snapshot(
            devices=devices,
            handles={state: states[state] for state in LoadState},
            loads_in_progress={stage: states[stage] for stage in STAGES},
            queue_length=self._keeper.queue_length,
            resident_models=len(resident),
            planned_bytes=planned,
            unreleased_bytes=self._keeper.unreleased,
            last_progress_at=self._keeper.last_progress_at,
            resident=resident,
        )

    def ready(self) -> tuple[bool, str]:
        """Whether new loads would get on, and if not, why."""
        if self._keeper.closing:
            return False, "shutting down"
        if not self._world.backends:
            return False, "no devices are known"
        if not self._keeper.working:
            return False, "a worker thread has ended"
        stalled = self._wall() - self._keeper.last_progress_at
        if self._keeper.queue_length and stalled > self._limits.stall_seconds:
            return False, f"loads wait, and a running one has made no progress for {stalled:.0f} s"
        return True, "ready"

    def close(self, deadline_seconds: float = 30.0, *, finish_seconds: float = 0.0) -> bool:
        """Refuse new work, end what is under way, release what is resident; whether all of it ended in time.

        Accepted loads may go on for `finish_seconds`; what has not ended by then is cancelled.
        """
        return self._keeper.close(deadline_seconds, finish_seconds)


def _resident(claim: Claim) -> ResidentModel:
    allocated: Counter[str] = Counter()
    for name, nbytes in claim.allocated.items():
        allocated[claim.public_name(name)] += nbytes
    return ResidentModel(
        model=claim.request.model,
        load_seconds=claim.record.duration_ns(0) / NANOSECONDS,
        allocated_bytes=allocated,
    )
