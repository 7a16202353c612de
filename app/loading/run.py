"""The straight line from a request to a loaded model. A plan request walks the same line and stops before memory.

    read → understand → plan → negotiate → lay out → allocate → move → verify → hand over

Each step makes a value from the values before it. Until the last line the load owns its buffers; whatever goes wrong
gives them back in reverse and leaves one typed error.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from app.architectures.registry import Catalog
from app.architectures.understanding import understand
from app.devices.backend import Backend, Buffer
from app.devices.facts import DeviceFacts
from app.devices.simulated import KIND as SIMULATED
from app.devices.simulated import SimulatedBackend
from app.errors import FileError, NotFoundError, PlanError
from app.loading.allocation import Allocation, allocate, require_going
from app.loading.layout import Layout, mappable_bytes
from app.loading.lifecycle import EventKind, LoadEvent
from app.loading.negotiation import LoadMode, negotiate
from app.loading.placing import place, require_complete
from app.loading.prepared import Prepared
from app.loading.request import PlanRequest
from app.loading.signals import Emit, Planned, Signal
from app.loading.targets import resolve_targets
from app.loading.transfer import DEFAULT_CHUNK_BYTES, DEFAULT_THREADS
from app.modelfile.limits import ReadLimits
from app.modelfile.opening import not_found, open_regular
from app.modelfile.reader import read_model_file
from app.modelfile.source import filesystem_kind, is_network, open_source
from app.modelfile.types import ModelFile
from app.modelfile.vocabulary import duplicate_tokens
from app.planner.pipeline import plan_split
from app.units import MIB

_TOKEN_BYTES: Final = MIB  # some seventy thousand tokens, looked through in a hundredth of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What every load is given: made once, by whoever composes the daemon.

    `backends` are the daemon's devices by name, `host` among them. `roots` are where models may lie; None: anywhere.
    `clock` gives monotonic nanoseconds.
    """

    catalog: Catalog
    backends: Mapping[str, Backend]
    limits: ReadLimits = field(default_factory=ReadLimits)
    roots: tuple[Path, ...] | None = None
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    transfer_threads: int = DEFAULT_THREADS
    clock: Callable[[], int] = time.monotonic_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in place. Owns its buffers until `free`."""

    prepared: Prepared
    layout: Layout
    buffers: Mapping[int, Buffer]
    memory: ExitStack

    def plan_errors(self) -> Mapping[str, float]:
        """Per kind of device, the bytes allocated (gaps between tensors included) over those planned, less one."""
        planned: dict[str, int] = {}
        allocated: dict[str, int] = {}
        for spec in self.layout.buffers:
            kind = self.prepared.targets.facts[spec.device].kind
            planned[kind] = planned.get(kind, 0) + spec.accounted_bytes
            taken = spec.nbytes if spec.mapped is None else spec.accounted_bytes
            allocated[kind] = allocated.get(kind, 0) + taken
        return {kind: allocated[kind] / nbytes - 1 for kind, nbytes in planned.items() if nbytes}

    def free(self) -> None:
        """Give every buffer back, the last one first; whoever watches the load's signals is told of each."""
        self.memory.close()


def run_load(request: PlanRequest, world: World, emit: Emit, stop: threading.Event) -> LoadedModel:
    """Load what `request` asks for; `emit` is told every step, from several threads; setting `stop` ends it early.

    The last step, from `verifying` to `ready`, is the caller's to take when it has the model in hand.
    Raises CancelledLoadError, and every error that reading, planning, allocating and moving can end in.
    """
    check_loadable(request)
    prepared = prepare(request, world, emit)
    prepared.require_legal()
    backends = {**world.backends, **_declared(request)}
    with ExitStack() as files, ExitStack() as memory:
        direct = prepared.mapping.resolved is LoadMode.DIRECT_IO
        sources = [files.enter_context(open_source(shard, direct=direct)) for shard in prepared.model.shards]
        allocation = allocate(prepared, backends, sources, memory, emit, stop)
        emit(_event(world, EventKind.ALLOCATED))
        allocation, placed = place(
            allocation, sources, emit, stop, threads=world.transfer_threads, chunk_bytes=world.chunk_bytes
        )
        emit(_event(world, EventKind.MOVED))
        require_complete(allocation, placed, sources)
        require_going(stop)
        return _hand_over(allocation, memory)


def _ignore(_signal: Signal) -> None:
    """Tell nobody."""


def prepare(request: PlanRequest, world: World, emit: Emit = _ignore) -> Prepared:
    """Everything up to the first byte of memory, without a side effect. `request` has passed `check_request`.

    Raises NotFoundError, AccessError, FileError, MetadataError, PlanError. A plan that is larger than its devices is
    an answer, not an error.
    """
    model = _read(request.model, world)
    emit(_event(world, EventKind.READ, sum(shard.data_start for shard in model.shards)))
    understanding = understand(model, world.catalog)
    known = {name: backend.facts() for name, backend in world.backends.items()}
    targets = resolve_targets(request, known, _declared_facts(request))
    plan = plan_split(understanding, targets.split)
    emit(_event(world, EventKind.PLANNED))
    mapping = negotiate(
        request.load_mode,
        [targets.facts[total.name] for total in plan.totals],
        mappable=mappable_bytes(plan),
        filesystem=_filesystem(model),
        empty=[total.name for total in plan.totals if not total.weights_bytes],
        elsewhere=[device.name for device in request.declared if device.kind != SIMULATED],
    )
    prepared = Prepared(request=request, understanding=understanding, targets=targets, plan=plan, mapping=mapping)
    emit(Planned(prepared))
    emit(_event(world, EventKind.NEGOTIATED))
    return prepared


def _read(asked: str, world: World) -> ModelFile:
    """The model's files, with what is odd about their vocabulary, unless it is so long that looking takes too long."""
    with _named_as_asked(asked, world.roots):
        model = read_model_file(locate(asked, world.roots), world.limits, world.roots)
    return replace(model, warnings=(*model.warnings, *duplicate_tokens(model, _TOKEN_BYTES)))


def check_loadable(request: PlanRequest) -> None:
    """Refuse a load on devices that stand for ones elsewhere. Raises PlanError `device_not_loadable`."""
    for device in request.declared:
        if device.kind != SIMULATED:
            raise PlanError(
                f"device {device.name} is declared as {device.kind}: it can be planned on, not loaded on",
                code="device_not_loadable",
                device=device.name,
            )


def check_path(model: str, roots: tuple[Path, ...] | None) -> None:
    """Look whether a load of `model` could begin, without reading it.

    Raises NotFoundError `model_not_found` (missing, or outside the roots), AccessError, FileError
    `not_regular_file`. A folder may hold a split model.
    """
    try:
        with _named_as_asked(model, roots), open_regular(locate(model, roots), roots):
            return
    except FileError as error:
        if error.code != "is_directory":
            raise


def locate(model: str, roots: tuple[Path, ...] | None) -> Path:
    """The path a client means: as it is if absolute, else under the first root that has it.

    Raises NotFoundError where there is no root to look under.
    """
    path = Path(model)
    if path.is_absolute() or roots is None:
        return path
    if not roots:
        raise not_found(path, roots)
    return next((root / path for root in roots if os.path.lexists(root / path)), roots[0] / path)


@contextmanager
def _named_as_asked(model: str, roots: tuple[Path, ...] | None) -> Iterator[None]:
    """Where there is no model, say so in the words of the client, whichever root was looked under."""
    try:
        yield
    except NotFoundError:
        raise not_found(Path(model), roots) from None


def _hand_over(allocation: Allocation, memory: ExitStack) -> LoadedModel:
    return LoadedModel(
        prepared=allocation.prepared,
        layout=allocation.layout,
        buffers=allocation.buffers,
        memory=memory.pop_all(),
    )


def _event(world: World, kind: EventKind, nbytes: int = 0) -> LoadEvent:
    return LoadEvent(kind=kind, at_ns=world.clock(), nbytes=nbytes)


def _declared(request: PlanRequest) -> dict[str, Backend]:
    """The request's own devices, simulated whatever they stand for: a load only gets here if they are."""
    return {
        device.name: SimulatedBackend(
            device.name, device.memory_bytes, free_bytes=device.free_bytes, capabilities=device.capabilities
        )
        for device in request.declared
    }


def _declared_facts(request: PlanRequest) -> dict[str, DeviceFacts]:
    backends = _declared(request)
    return {device.name: replace(backends[device.name].facts(), kind=device.kind) for device in request.declared}


def _filesystem(model: ModelFile) -> str:
    """The kind of file system the model lies on; a network one, if any of its files does."""
    kinds = [filesystem_kind(shard.path) for shard in model.shards]
    return next((kind for kind in kinds if is_network(kind)), kinds[0])
