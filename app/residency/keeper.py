"""Runs loads on threads of its own, keeps the models they leave, and gives them back.

One lock guards the claims; it is never held while a file, a device, an observer or a caller's function is called.
What happens when is the lifecycle's table; this only says who does it and who is told.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from app.errors import BusyError, CancelledLoadError, FileError, GgufdError, NotFoundError
from app.loading.lifecycle import HEADER_STAGES, NANOSECONDS, UNDER_WAY, EventKind, LoadEvent, open_record, takes
from app.loading.request import PlanRequest
from app.loading.run import LoadedModel, World, run_load
from app.loading.signals import FileRead, Placed, Signal
from app.modelfile.shortage import shortage
from app.residency.claim import Claim
from app.residency.crew import Crew
from app.residency.ended import Ended
from app.residency.handles import HandleView, Released
from app.residency.notices import (
    FellBack,
    HeaderRejected,
    LoadEnded,
    LoadObserver,
    LoadStarted,
    Notice,
    Unloaded,
)
from app.residency.registry import ClaimRegistry, PlanArchive

_log: Final = logging.getLogger("ggufd.load")
_ANY_NUMBER: Final = 2**62
Told = Callable[[HandleView], None]
"""Told how a load ended; called without any lock, from a load's thread or the asker's own."""
_POLL_SECONDS: Final = 0.02


class Keeper:
    """Who holds which model, and the threads that work for them. Thread-safe; `close` it."""

    def __init__(
        self,
        world: World,
        *,
        load_workers: int,
        queue_limit: int,
        history_limit: int,
        observers: Sequence[LoadObserver],
        wall: Callable[[], float],
    ) -> None:
        self.archive = PlanArchive()
        self._world = world
        self._observers = tuple(observers)
        self._wall = wall
        self._lock = threading.Lock()
        self._claims = ClaimRegistry(history_limit)
        self._unreleased: Counter[str] = Counter()
        self._last_progress_at = wall()
        self._closing = False
        self._loads: Crew[Claim] = Crew("load", load_workers, queue_limit, self._load)
        self._releases: Crew[Claim] = Crew("release", 1, _ANY_NUMBER, self._free)

    # asked from any thread

    @contextmanager
    def claims(self) -> Iterator[ClaimRegistry]:
        """The claims, for as long as the lock is held: look, copy, and go."""
        with self._lock:
            yield self._claims

    @property
    def queue_length(self) -> int:
        """How many loads wait for a thread."""
        return len(self._loads)

    @property
    def closing(self) -> bool:
        """Whether new work is refused."""
        return self._closing

    @property
    def working(self) -> bool:
        """Whether every thread is there to take work."""
        return self._loads.alive and self._releases.alive

    @property
    def unreleased(self) -> Mapping[str, int]:
        """Bytes per device that ended loads and models should have given back and did not."""
        with self._lock:
            return Counter(self._unreleased)

    @property
    def last_progress_at(self) -> float:
        """The last progress (Unix seconds) of the running load that has waited longest; of any if none runs."""
        with self._lock:
            running = [
                claim.progress_at
                for claim in self._claims.live()
                if claim.record.state in UNDER_WAY and not takes(claim.record.state, EventKind.STARTED)
            ]
            return min(running, default=self._last_progress_at)

    def known(self, key: str | None, request: PlanRequest, on_end: Told | None = None) -> HandleView | None:
        """The handle that was made with this idempotency key; `on_end` is told of its end, as by `accept`.

        Raises ConflictError `idempotency_conflict`.
        """
        wish = _fingerprint(request, key)
        with self._lock:
            claim = self._claims.by_key(key, wish)
            if claim is None:
                return None
            view, told = claim.view(self._world.clock()), self._join(claim, on_end)
        return _also_told(view, told)

    def accept(
        self, request: PlanRequest, key: str | None, retry_after_seconds: float, on_end: Told | None = None
    ) -> HandleView:
        """Queue a load. `on_end` is called once, with the handle as the load left it; `forget` takes that back.

        That is the only way to be sure of the end: a handle may be forgotten as soon as its load has ended.
        Raises ConflictError, or BusyError `queue_full` or `shutting_down`.
        """
        wish = _fingerprint(request, key)
        with self._lock:
            now = self._world.clock()
            claim = self._claims.by_key(key, wish)
            if claim is None:
                claim = self._queue(request, key, wish, retry_after_seconds, now)
            view, told = claim.view(now), self._join(claim, on_end)
        return _also_told(view, told)

    def forget(self, handle_id: str, on_end: Told) -> None:
        """Do not tell `on_end` any more."""
        with self._lock, suppress(NotFoundError, ValueError):
            claim = self._claims.get(handle_id)
            if isinstance(claim, Claim):
                claim.waiting.remove(on_end)

    def release(self, handle_id: str, wait_seconds: float) -> Released:
        """Give a handle up and wait for the end. Raises NotFoundError `handle_not_found`."""
        withdrawn = False
        with self._lock:
            claim = self._claims.get(handle_id)
            if isinstance(claim, Ended):
                return claim.released
            state = claim.record.state
            if takes(state, EventKind.RELEASE_ASKED):
                claim.stop.set()
                claim.apply(LoadEvent(kind=EventKind.RELEASE_ASKED, at_ns=self._world.clock()), self._wall())
                self._releases.offer(claim)
            elif takes(state, EventKind.CANCELLED):
                claim.stop.set()
                withdrawn = self._loads.withdraw(claim)
        if withdrawn:
            self._fail(claim, CancelledLoadError("the handle was released while its load was queued"))
        claim.closed.wait(wait_seconds)
        with self._lock:
            return claim.released

    def when_ended(self, handle_id: str, callback: Told) -> None:
        """Call `callback` when the load has ended, or now if it has; `forget` takes that back.

        Raises NotFoundError `handle_not_found`.
        """
        with self._lock:
            claim = self._claims.get(handle_id)
            view, told = claim.view(self._world.clock()), self._join(claim, callback)
        _also_told(view, told)

    def close(self, deadline_seconds: float, finish_seconds: float = 0.0) -> bool:
        """Refuse new work, end what is under way, release what is resident; whether all of it ended in time.

        Accepted loads may go on for `finish_seconds`; what has not ended by then is cancelled.
        """
        now = time.monotonic()
        until, finishing = now + deadline_seconds, now + min(finish_seconds, deadline_seconds)
        with self._lock:
            self._closing = True
            held = [*self._claims.live()]
        while time.monotonic() < finishing and any(claim.record.state in UNDER_WAY for claim in held):
            time.sleep(_POLL_SECONDS)
        for claim in held:
            with suppress(NotFoundError):  # it may have ended by itself, and history may be short
                self.release(claim.id, wait_seconds=0)
        for claim in held:
            claim.closed.wait(max(0.0, until - time.monotonic()))
        ended = []
        for crew in (self._loads, self._releases):  # a load that ends late may still have a model to give back
            crew.close()
            ended.append(crew.join(max(0.0, until - time.monotonic())))
        return all(ended)

    def tell(self, notice: Notice) -> None:
        """Let every observer know."""
        for observer in self._observers:
            _call(observer, notice)

    # on the crews' threads

    def _load(self, claim: Claim) -> None:
        try:
            self._take(claim, LoadEvent(kind=EventKind.STARTED, at_ns=self._world.clock()))
            self.tell(LoadStarted(claim.record.stages(0)[0].seconds))
            loaded = run_load(claim.request, self._world, partial(self._take, claim), claim.stop)
        except GgufdError as error:
            self._fail(claim, error)
        except Exception as error:
            log_fault(f"load {claim.record.id} ended in an error nobody foresaw")
            self._fail(claim, shortage(error, "the load") or internal_error(f"load {claim.record.id}"))
        else:
            self._hand_over(claim, loaded)

    def _hand_over(self, claim: Claim, loaded: LoadedModel) -> None:
        """Make the model resident, unless its release was asked for in the meantime."""
        plan_errors = loaded.plan_errors()
        with self._lock:
            wanted = not claim.stop.is_set()
            if wanted:
                claim.model = loaded
                claim.apply(LoadEvent(kind=EventKind.VERIFIED, at_ns=self._world.clock()), self._wall())
                view = claim.view(self._world.clock())  # here, because it may be released the moment the lock is free
        if wanted:
            self._tell_ended(claim, view, plan_errors)
        else:
            self._give_back(claim, loaded)
            self._fail(claim, CancelledLoadError("the handle was released before its load ended"))

    def _fail(self, claim: Claim, error: GgufdError) -> None:
        """End the load without a model; its own unwinding has given everything back."""
        with self._lock:
            stage = claim.record.state
            claim.fail(error, self._world.clock(), self._wall())
            view = claim.view(self._world.clock())
        if isinstance(error, FileError) and stage in HEADER_STAGES:
            self.tell(HeaderRejected(error.code))
        self._settle(claim)
        self._tell_ended(claim, view, {})

    def _free(self, claim: Claim) -> None:
        loaded, claim.model = claim.model, None
        assert loaded is not None, "only a ready claim can be asked to release"
        claim.uses.end()
        self._give_back(claim, loaded)
        self._take(claim, LoadEvent(kind=EventKind.FREED, at_ns=self._world.clock()))
        seconds = claim.record.release_ns / NANOSECONDS
        unreleased = self._settle(claim)
        _log.info(
            "unloaded handle=%s model_id=%s released_bytes=%d seconds=%.3f",
            claim.id,
            claim.model_id,
            claim.released.released_bytes,
            seconds,
        )
        self.tell(Unloaded(seconds, unreleased))

    def _give_back(self, claim: Claim, loaded: LoadedModel) -> None:
        try:
            loaded.free()
        except Exception:
            log_fault(f"freeing the memory of load {claim.record.id} failed")

    def _settle(self, claim: Claim) -> Mapping[str, int]:
        """Close a claim whose state is final: its plan is archived; answers what its devices have not given back."""
        try:
            packed = None if claim.prepared is None else PlanArchive.pack(claim.prepared.as_json())
        except Exception:  # a plan that cannot be kept, for want of memory say, keeps nobody waiting
            log_fault(f"the plan of load {claim.record.id} could not be archived")
            packed = None
        try:
            with self._lock:
                claim.prepared = None
                if packed is not None:
                    self.archive.put(claim.id, packed)
                unreleased: Counter[str] = Counter()
                for device, nbytes in claim.allocated.items():
                    unreleased[claim.public_name(device)] += nbytes
                self._unreleased.update(unreleased)
                self._claims.ended(claim)
        finally:
            claim.closed.set()
        return +unreleased

    # telling

    def _take(self, claim: Claim, signal: Signal) -> None:
        """What a running load has to say; called from its threads."""
        wall = self._wall()
        with self._lock:
            claim.apply(signal, wall)
            self._last_progress_at = wall
        if isinstance(signal, Placed):
            self.tell(replace(signal, device=claim.public_name(signal.device)))
        elif isinstance(signal, FileRead):
            self.tell(signal)

    def _tell_ended(self, claim: Claim, view: HandleView, plan_errors: Mapping[str, float]) -> None:
        with self._lock:
            waiting, claim.waiting, claim.told = claim.waiting, [], True
            fallbacks = claim.fallbacks
        _log.info(
            "load ended id=%s handle=%s model=%r outcome=%s reason=%s seconds=%.3f %s",
            view.load_id,
            view.id,
            view.model,
            view.state,
            "none" if view.failure is None else view.failure.code,
            view.duration_seconds,
            " ".join(f"{stage.stage}={stage.seconds:.3f}" for stage in view.stages),
        )
        for fallback in fallbacks:
            self.tell(FellBack(fallback))
        self.tell(LoadEnded(view, claim.request.split_mode, plan_errors))
        for callback in waiting:
            _call(callback, view)

    # under the lock

    def _queue(self, request: PlanRequest, key: str | None, wish: str, retry_after_seconds: float, now: int) -> Claim:
        if self._closing:
            raise BusyError(
                "the daemon is shutting down", code="shutting_down", retry_after_seconds=retry_after_seconds
            )
        claim = Claim(
            handle_id=f"h-{secrets.token_hex(8)}",
            model_id=f"m-{secrets.token_hex(8)}",
            request=request,
            record=open_record(f"l-{secrets.token_hex(8)}", created_at=self._wall(), at_ns=now),
        )
        if not self._loads.offer(claim):
            raise BusyError(
                f"the load queue is full: {len(self._loads)} loads wait",
                code="queue_full",
                retry_after_seconds=retry_after_seconds,
            )
        self._claims.add(claim, key, wish)
        return claim

    def _join(self, claim: Claim | Ended, on_end: Told | None) -> Told | None:
        """Let `on_end` wait with the others; answers it if they have been told, so that it has to be told now."""
        if on_end is None or isinstance(claim, Ended) or claim.told:
            return on_end
        claim.waiting.append(on_end)
        return None


def _fingerprint(request: PlanRequest, key: str | None) -> str:
    """What the key stands for; without one, nothing is compared. Takes its time for a large request."""
    return "" if key is None else request.fingerprint()


def _also_told(view: HandleView, on_end: Told | None) -> HandleView:
    if on_end is not None:
        _call(on_end, view)
    return view


def internal_error(what: str) -> GgufdError:
    """The error that stands for a fault of our own, or for one of the machine's that nothing foresaw."""
    return GgufdError(f"{what} ended in an error nobody foresaw; the log has the details", code="internal")


def log_fault(what: str) -> None:
    """Log the present exception as text: a log record that holds it would hold its frames, and views in them."""
    _log.error("%s\n%s", what, traceback.format_exc())


def _call(function: Callable[[Any], None], value: Any) -> None:
    try:
        function(value)
    except Exception:
        log_fault("an observer failed")
