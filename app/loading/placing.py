"""Filling what was allocated: mapped ranges made present, all else read and cut. Then the cheap proof of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from app.errors import DeviceError
from app.loading.allocation import Allocation, require_going
from app.loading.negotiation import MappingDecision, direct_io_refused, lock_refused
from app.loading.signals import Emit, FileRead, Placed, Remapped
from app.loading.transfer import move
from app.modelfile.source import FileSource

_SOURCE = "file"
_MAPPED = "mmap"


class CountedSource:
    """A source that tells of every read: how many bytes, and in which mode they came."""

    def __init__(self, source: FileSource, emit: Emit) -> None:
        self.size = source.size
        self._source = source
        self._emit = emit

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset`. Raises FileError."""
        self._source.read_into(offset, target)
        self._emit(FileRead(_SOURCE, self._source.io_mode, target.nbytes))

    def close(self) -> None:
        """Close the source."""
        self._source.close()


class _Landing:
    """Bytes in place per device, counted from several threads and told on."""

    def __init__(self, emit: Emit) -> None:
        self.placed: Counter[str] = Counter()
        self._emit = emit
        self._lock = threading.Lock()

    def copied(self, device: str, nbytes: int) -> None:
        self._land(Placed(device, nbytes))

    def found(self, device: str, nbytes: int) -> None:
        """Bytes that are in place without being copied."""
        self._land(Placed(device, nbytes, copied=False))

    def _land(self, placed: Placed) -> None:
        with self._lock:
            self.placed[placed.device] += placed.nbytes
        self._emit(placed)


def place(
    allocation: Allocation,
    sources: Sequence[FileSource],
    emit: Emit,
    stop: threading.Event,
    *,
    threads: int,
    chunk_bytes: int,
) -> tuple[Allocation, Mapping[str, int]]:
    """Bring every byte to its place; answers the allocation with the load mode that was left, and bytes per device.

    Raises FileError, DeviceError, CapacityError, CancelledLoadError.
    """
    landing = _Landing(emit)
    for total in allocation.prepared.plan.totals:
        if total.cache_bytes:
            landing.found(total.name, total.cache_bytes)  # caches begin as the zeros that memory comes with
    _populate(allocation, landing.found, emit, stop)
    move(
        allocation.layout.steps,
        [CountedSource(source, emit) for source in sources],
        allocation.buffers,
        stop,
        threads=threads,
        chunk_bytes=chunk_bytes,
        progress=landing.copied,
    )
    mapping = _lock(allocation, _past_the_cache(allocation.prepared.mapping, sources), stop)
    if mapping is not allocation.prepared.mapping:
        emit(Remapped(mapping))
        allocation = replace(allocation, prepared=replace(allocation.prepared, mapping=mapping))
    return allocation, landing.placed


def require_complete(allocation: Allocation, placed: Mapping[str, int], sources: Sequence[FileSource]) -> None:
    """Every planned byte was placed, and the files are still the ones the plan was made for.

    Raises DeviceError or FileError `file_changed`.
    """
    for total in allocation.prepared.plan.totals:
        if placed.get(total.name, 0) != total.total_bytes:
            raise DeviceError(
                f"device {total.name} received {placed.get(total.name, 0)} of {total.total_bytes} planned bytes",
                device=total.name,
                operation="verify",
                expected=total.total_bytes,
                found=placed.get(total.name, 0),
            )
    for source in sources:
        source.require_unchanged()


def _populate(allocation: Allocation, land: Callable[[str, int], None], emit: Emit, stop: threading.Event) -> None:
    """Have the kernel read the mapped ranges. Of what it reads, only the tensors count as placed, not the gaps."""
    for spec in allocation.layout.buffers:
        if spec.mapped is None:
            continue
        left = spec.accounted_bytes

        def present(nbytes: int, device: str = spec.device) -> None:
            nonlocal left
            emit(FileRead(_SOURCE, _MAPPED, nbytes))
            told = min(nbytes, left)
            left -= told
            if told:
                land(device, told)

        allocation.mapped[spec.id].populate(stop, present)
        require_going(stop)
        if left:
            land(spec.device, left)


def _past_the_cache(mapping: MappingDecision, sources: Sequence[FileSource]) -> MappingDecision:
    for source in sources:
        if source.fallback_reason is not None:
            mapping = direct_io_refused(mapping, source.fallback_reason)
    return mapping


def _lock(allocation: Allocation, mapping: MappingDecision, stop: threading.Event) -> MappingDecision:
    """Lock what was to be locked; a refusal takes the lock off the device's mode and is no failure."""
    for spec in allocation.layout.buffers:
        if mapping.mode_of(spec.device).locks:
            refusal = allocation.buffers[spec.id].lock(stop)
            require_going(stop)
            if refusal is not None:
                mapping = lock_refused(mapping, spec.device, refusal)
    return mapping
