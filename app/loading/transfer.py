"""Moving a layout's bytes: every byte of the file is read once, by several threads, in blocks of about a megabyte or
more, and goes to all devices that want it.

A block that is, byte for byte, what a device the host can address wants is read straight into its memory (and copied
on from there if others want it too). All else is read into a staging block of the thread's own and scattered with
`numpy.copyto`. Devices that cannot be addressed get their part packed and written. Tensors of less than a block that
lie side by side are read together. So beside the model there is never more than two blocks per thread.
"""

import mmap
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.devices.backend import Buffer
from app.devices.ledger import out_of_memory
from app.errors import CancelledLoadError, FileError, GgufdError
from app.loading.cuts import Block, Part, StridedCopy, blocks, one_block
from app.loading.layout import CopyStep, Placement
from app.modelfile.shortage import shortage
from app.modelfile.source import ByteSource
from app.units import KIB, MIB

DEFAULT_THREADS: Final = 4
DEFAULT_CHUNK_BYTES: Final = 8 * MIB
BLOCK_BYTES: Final = MIB  # what is scattered while it is still in a processor's cache
SMALL_BYTES: Final = 256 * KIB  # below this, one more read costs more than one more copy
_MAX_GAP_BYTES: Final = 4 * KIB  # alignment padding that is cheaper to read than to skip

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class _Read:
    """Bytes `[offset, offset + nbytes)` of a shard to be read at once; blocks count from their own step's tensor."""

    shard: int
    offset: int
    nbytes: int
    blocks: tuple[tuple[CopyStep, Block], ...]


def move(
    steps: Sequence[CopyStep],
    sources: Sequence[ByteSource],
    buffers: Mapping[int, Buffer],
    stop: threading.Event,
    *,
    threads: int = DEFAULT_THREADS,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    progress: Progress | None = None,
) -> int:
    """Carry out `steps`, reading from `sources` (by shard) into `buffers` (by id); answers the bytes read.

    A read is at most `chunk_bytes` (a batch of small tensors, a block). `progress(device, nbytes)` is told, on the
    worker threads, what has landed. `stop` is looked at before every read, and by devices that make us wait.
    Returns, or raises, only when all its threads have ended and no view of a buffer is left.
    Raises CancelledLoadError, or the first thing that went wrong: FileError, DeviceError, CapacityError.
    """
    with ExitStack() as stack:
        views: dict[int, memoryview] = {}
        for number in {target.buffer for step in steps for target in step.targets if target is not None}:
            view = buffers[number].view(0, buffers[number].nbytes)
            if view is not None:
                views[number] = stack.enter_context(view)
        reads = _reads(steps, views, min(BLOCK_BYTES, chunk_bytes), chunk_bytes)
        job = _Job(reads, sources, buffers, views, stop, progress)
        job.run(max(1, threads))
        return job.read_bytes


class _Job:
    """What the threads of one `move` share."""

    def __init__(
        self,
        reads: Iterator[_Read],
        sources: Sequence[ByteSource],
        buffers: Mapping[int, Buffer],
        views: Mapping[int, memoryview],
        stop: threading.Event,
        progress: Progress | None,
    ) -> None:
        self.sources: Final = sources
        self.buffers: Final = buffers
        self.views: Final = views
        self.stop: Final = stop
        self.progress: Final = progress
        self.read_bytes = 0
        self._reads: Final = reads
        self._lock: Final = threading.Lock()
        self._failures: Final[list[BaseException]] = []
        self._staging: Final[list[_Staging]] = []

    def run(self, threads: int) -> None:
        """All reads, on `threads` threads; returns when they have ended. Raises the first failure."""
        workers = [threading.Thread(target=self._work, name=f"ggufd-move-{n}", daemon=True) for n in range(threads)]
        started: list[threading.Thread] = []
        try:
            for worker in workers:
                worker.start()
                started.append(worker)
            for worker in started:
                worker.join()
        except BaseException as error:  # an interrupt, or the system has no more threads: those that run are enough
            if not (isinstance(error, RuntimeError) and started):
                self._failures.append(_no_room("no more threads") if isinstance(error, RuntimeError) else error)
            for worker in started:
                worker.join()
        failures = tuple(self._failures)
        for failure in failures:
            _drop_frames(failure)
        for staging in self._staging:
            staging.close()
        if failures:
            raise _typed(failures[0])

    def _work(self) -> None:
        try:
            staging = _Staging()
            with self._lock:
                self._staging.append(staging)
            while (read := self._next()) is not None:
                _carry_out(read, self, staging)
        except BaseException as error:  # raised again by `run`, on the caller's thread
            with self._lock:
                self._failures.append(error)

    def _next(self) -> _Read | None:
        """The next read; None when all are taken or one has failed. Raises CancelledLoadError."""
        with self._lock:
            if self._failures:
                return None
            read = next(self._reads, None)
            if read is None:
                return None
            if self.stop.is_set():
                raise CancelledLoadError("cancelled while bytes were being moved")
            self.read_bytes += read.nbytes
            return read


class _Staging:
    """Two blocks of memory of one thread's own, page-aligned, grown on demand."""

    def __init__(self) -> None:
        self._areas: dict[str, mmap.mmap] = {}

    def take(self, use: str, nbytes: int) -> memoryview:
        """`nbytes` for one use; the same memory each time."""
        area = self._areas.get(use)
        if area is None or len(area) < nbytes:
            if area is not None:
                del self._areas[use]
                area.close()
            size = max(nbytes, BLOCK_BYTES)
            area = self._areas[use] = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return memoryview(area)[:nbytes]

    def close(self) -> None:
        for area in self._areas.values():
            area.close()


def _reads(
    steps: Sequence[CopyStep], views: Mapping[int, memoryview], block_bytes: int, chunk_bytes: int
) -> Iterator[_Read]:
    """The steps as reads, in file order; small neighbours share one. Only what is read in place exceeds a block."""
    batch: list[CopyStep] = []
    for step in steps:
        if batch and not _joins(batch, step, block_bytes):
            yield _together(batch)
            batch = []
        if step.nbytes <= min(SMALL_BYTES, block_bytes):
            batch.append(step)
            continue
        if batch:
            yield _together(batch)
            batch = []
        in_place = all(target is None or target.buffer in views for target in step.targets)
        for block in blocks(step.cut, block_bytes, chunk_bytes if in_place else block_bytes):
            yield _Read(step.shard, step.offset + block.offset, block.nbytes, ((step, block),))
    if batch:
        yield _together(batch)


def _joins(batch: Sequence[CopyStep], step: CopyStep, block_bytes: int) -> bool:
    first, last = batch[0], batch[-1]
    gap = step.offset - (last.offset + last.nbytes)
    return (
        step.shard == first.shard
        and 0 <= gap <= _MAX_GAP_BYTES
        and step.offset + step.nbytes - first.offset <= block_bytes
    )


def _together(batch: Sequence[CopyStep]) -> _Read:
    first, last = batch[0], batch[-1]
    nbytes = last.offset + last.nbytes - first.offset
    return _Read(first.shard, first.offset, nbytes, tuple((step, one_block(step.cut)) for step in batch))


def _carry_out(read: _Read, job: _Job, staging: _Staging) -> None:
    """Read once, and bring every part to its place."""
    straight = _straight(read, job.views)
    into = staging.take("read", read.nbytes) if straight is None else straight[1]
    job.sources[read.shard].read_into(read.offset, into)
    for step, block in read.blocks:
        start = step.offset + block.offset - read.offset
        data = into[start : start + block.nbytes]
        for part in block.parts:
            target = step.targets[part.slot]
            assert target is not None, "a slot with bytes has a target"
            if straight is None or part is not straight[0]:
                _land(part, target, data, job, staging)
            if job.progress is not None:
                job.progress(target.device, part.nbytes)


def _straight(read: _Read, views: Mapping[int, memoryview]) -> tuple[Part, memoryview] | None:
    """A part that is the whole read as it is, in memory the host can address: it is read there."""
    if len(read.blocks) != 1:
        return None
    step, block = read.blocks[0]
    for part in block.parts:
        target = step.targets[part.slot]
        if not part.copies and target is not None and target.buffer in views:
            at = target.offset + part.offset
            return part, views[target.buffer][at : at + part.nbytes]
    return None


def _land(part: Part, target: Placement, data: memoryview, job: _Job, staging: _Staging) -> None:
    """Bring one part of a block that was read to its device."""
    at = target.offset + part.offset
    view = job.views.get(target.buffer)
    if view is not None:
        _scatter(part, data, view[at : at + part.nbytes])
    elif not part.copies:
        job.buffers[target.buffer].write(at, data, job.stop)
    else:
        packed = staging.take("pack", part.nbytes)
        _scatter(part, data, packed)
        job.buffers[target.buffer].write(at, packed, job.stop)


def _scatter(part: Part, data: memoryview, into: memoryview) -> None:
    if not part.copies:
        np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(data, np.uint8))
    for copy in part.copies:
        np.copyto(part_array(copy, into), block_array(copy, data))


def block_array(copy: StridedCopy, block: memoryview) -> NDArray[np.uint8]:
    """The bytes of `copy` as they lie in the block: rows × repeats × bytes."""
    strides = (copy.block_row_stride, copy.block_repeat_stride, 1)
    return np.ndarray((copy.rows, copy.repeats, copy.nbytes), np.uint8, block, copy.block_offset, strides)


def part_array(copy: StridedCopy, part: memoryview) -> NDArray[np.uint8]:
    """The bytes of `copy` as they lie in the part of the slice."""
    strides = (copy.part_row_stride, copy.part_repeat_stride, 1)
    return np.ndarray((copy.rows, copy.repeats, copy.nbytes), np.uint8, part, copy.part_offset, strides)


def _drop_frames(error: BaseException) -> None:
    """Let go of what the frames of an error hold: a view in one of them would keep its buffer from being freed."""
    pending, seen = [error], {id(error)}
    while pending:
        error = pending.pop()
        traceback.clear_frames(error.__traceback__)
        for other in (error.__cause__, error.__context__):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                pending.append(other)


def _typed(failure: BaseException) -> BaseException:
    """The failure as one of the product's own, where the system can have caused it."""
    if isinstance(failure, OSError):
        error: GgufdError = shortage(failure, "reading") or FileError(
            f"reading failed: {failure.strerror}", code="read_failed"
        )
    elif isinstance(failure, MemoryError):
        error = _no_room("no more memory for staging")
    else:
        return failure
    error.__cause__ = failure
    return error


def _no_room(why: str) -> GgufdError:
    return out_of_memory("host", 2 * BLOCK_BYTES, 0, f"the system has {why}")
