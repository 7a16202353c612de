"""Memory for a layout, all of it or none: ordinary buffers, and ranges of the file where a device takes them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from app.devices.backend import Backend, Buffer
from app.errors import CancelledLoadError, CapacityError, FileError
from app.loading.layout import BufferSpec, Layout, lay_out
from app.loading.negotiation import LoadMode, map_refused
from app.loading.prepared import Prepared
from app.loading.signals import Allocated, Emit, Freed, Remapped
from app.modelfile.source import FileSource, MappedRange

_log: Final = logging.getLogger("ggufd.load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a load has to fill: its buffers by id, and those of them that are ranges of the file.

    `prepared` has the load mode that was left once the system had its say.
    """

    prepared: Prepared
    layout: Layout
    buffers: Mapping[int, Buffer]
    mapped: Mapping[int, MappedRange]


class _MapRefusedError(Exception):
    """The kernel or a device would not take a range of the file; the text says which and why."""


def require_going(stop: threading.Event) -> None:
    """Raise CancelledLoadError if the load was told to stop."""
    if stop.is_set():
        raise CancelledLoadError("the handle was released before its load ended")


def allocate(
    prepared: Prepared,
    backends: Mapping[str, Backend],
    sources: Sequence[FileSource],
    memory: ExitStack,
    emit: Emit,
    stop: threading.Event,
) -> Allocation:
    """Lay the plan out and make every buffer; `memory` owns them when this returns, and nothing is left if it raises.

    A mapping that is refused where nobody insisted on it is made up for by reading.
    Raises CapacityError (before anything is allocated, if it can be known then), PlanError `unsupported_load_mode`,
    DeviceError, CancelledLoadError.
    """
    try:
        return _attempt(prepared, backends, sources, memory, emit, stop)
    except _MapRefusedError as refusal:
        if isinstance(refusal.__cause__, CapacityError) and prepared.mapping.requested is not LoadMode.AUTO:
            raise refusal.__cause__ from None  # the mode could be honoured, were there the memory
        prepared = replace(prepared, mapping=map_refused(prepared.mapping, str(refusal)))
    emit(Remapped(prepared.mapping))
    return _attempt(prepared, backends, sources, memory, emit, stop)


def _attempt(
    prepared: Prepared,
    backends: Mapping[str, Backend],
    sources: Sequence[FileSource],
    memory: ExitStack,
    emit: Emit,
    stop: threading.Event,
) -> Allocation:
    layout = lay_out(prepared.plan, prepared.mapping, prepared.targets.facts)
    buffers: dict[int, Buffer] = {}
    mapped: dict[int, MappedRange] = {}
    with ExitStack() as attempt:
        for spec in layout.buffers:
            require_going(stop)
            backend = backends[spec.device]
            if spec.mapped is None:
                buffer = backend.allocate(spec.nbytes, spec.accounted_bytes, stop)
            else:
                buffer, mapped[spec.id] = _import(spec, backend, sources[spec.mapped.shard])
            attempt.callback(_give_back, buffer, spec, emit)
            emit(Allocated(spec.device, spec.accounted_bytes))
            buffers[spec.id] = buffer
        memory.push(attempt.pop_all())
    return Allocation(prepared=prepared, layout=layout, buffers=buffers, mapped=mapped)


def _import(spec: BufferSpec, backend: Backend, source: FileSource) -> tuple[Buffer, MappedRange]:
    assert spec.mapped is not None
    try:
        mapped = source.map_range(spec.mapped.offset, spec.mapped.nbytes)
    except (FileError, CapacityError) as error:
        raise _MapRefusedError(error.message) from error
    with ExitStack() as unless_taken:
        unless_taken.callback(mapped.close)
        buffer = backend.import_host(mapped, spec.accounted_bytes)
        if buffer is None:
            raise _MapRefusedError(f"device {spec.device} did not take the mapped file")
        unless_taken.pop_all()
    return buffer, mapped


def _give_back(buffer: Buffer, spec: BufferSpec, emit: Emit) -> None:
    """Free one buffer. What fails here stays accounted, and is reported as not released: nothing else can be done."""
    try:
        freed = buffer.free()
    except Exception:
        _log.exception("device %s failed to free a buffer of %d bytes", spec.device, spec.nbytes)
        return
    if freed:
        emit(Freed(spec.device, freed))
