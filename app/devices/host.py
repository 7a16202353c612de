"""Host memory as a device: shared memory with a capacity that is enforced to the byte."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.devices.facts import Capabilities, DeviceFacts
from app.devices.ledger import Ledger, out_of_memory
from app.devices.mapped import MappedBuffer
from app.devices.shared import SharedMemory
from app.errors import DeviceError
from app.modelfile.shortage import shortage
from app.modelfile.source import MappedRange

KIND: Final = "host"
ALIGNMENT_BYTES: Final = 32  # the reference's TENSOR_ALIGNMENT, and what files are written with
_CAPABILITIES: Final = Capabilities(asynchronous=False, host_buffer=False, events=False)  # as the reference's CPU
_SHORT_OF_MEMORY: Final = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EFAULT})  # EFAULT: a populate that met the end
_MAX_THREADS: Final = 4


class HostBuffer:
    """Shared memory of our own, zeroed and faulted in."""

    def __init__(self, device: str, memory: SharedMemory, accounted_bytes: int, ledger: Ledger) -> None:
        """Own `memory`, and `accounted_bytes` that were reserved in `ledger`."""
        self.nbytes: int = memory.nbytes
        self._device: Final = device
        self._memory: Final = memory
        self._accounted: Final = accounted_bytes
        self._ledger: Final = ledger
        self._turn: Final = threading.Condition()
        self._users = 0
        self._freeing = False
        self._freed = False

    def write(self, offset: int, data: memoryview, stop: threading.Event | None = None) -> None:
        """Copy `data` to byte `offset`."""
        with self._in_use("write", offset, data.nbytes):
            self._copy(offset, data, to_memory=True)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Copy bytes `offset`… into `target`."""
        with self._in_use("read", offset, target.nbytes):
            self._copy(offset, target, to_memory=False)

    def read_rows(self, offset: int, rows: NDArray[np.int64], target: NDArray[np.uint8]) -> None:
        """Copy rows of a table at byte `offset` into `target`."""
        width = target.shape[1]
        n_rows = int(rows.max(initial=-1)) + 1
        with (
            self._in_use("read", offset, n_rows * width),
            self._memory.view(offset, n_rows * width) as view,
        ):
            table = np.frombuffer(view, np.uint8).reshape(n_rows, width)
            np.take(table, rows, axis=0, out=target, mode="clip")  # "raise" would gather into a second array first
            del table  # or the view could not be released

    def view(self, offset: int, length: int) -> memoryview | None:
        """A writable view of the memory; release it before the buffer is freed."""
        with self._in_use("view", offset, length):
            return self._memory.view(offset, length)

    def lock(self, stop: threading.Event | None = None) -> str | None:
        """Lock the memory; None, or the errno's name."""
        with self._in_use("lock", 0, self.nbytes):
            return self._memory.lock(stop)

    def free(self) -> int:
        """Give memory and accounted bytes back, once reads and writes under way have ended."""
        with self._turn:
            if self._freed or self._freeing:
                return 0
            self._freeing = True  # from here on no operation begins
            self._turn.wait_for(lambda: self._users == 0)
        closed = self._memory.close()
        with self._turn:
            self._freed, self._freeing = closed, False
        if not closed:
            return 0
        self._ledger.release(self._accounted)
        return self._accounted

    def _copy(self, offset: int, other: memoryview, *, to_memory: bool) -> None:
        """numpy.copyto releases the interpreter lock, slice assignment does not."""
        with self._memory.view(offset, other.nbytes) as view:
            ours, theirs = np.frombuffer(view, np.uint8), np.frombuffer(other, np.uint8)
            if to_memory:
                np.copyto(ours, theirs)
            else:
                np.copyto(theirs, ours)
            del ours  # or the view could not be released

    @contextmanager
    def _in_use(self, operation: str, offset: int, length: int) -> Iterator[None]:
        with self._turn:
            if self._freed or self._freeing:
                raise DeviceError("the buffer was freed", device=self._device, operation=operation)
            if offset < 0 or offset + length > self.nbytes:
                raise DeviceError(
                    f"{operation} of {length} bytes at {offset} leaves a buffer of {self.nbytes}",
                    device=self._device,
                    operation=operation,
                )
            self._users += 1
        try:
            yield
        finally:
            with self._turn:
                self._users -= 1
                self._turn.notify_all()


class HostBackend:
    """Host memory, of which at most `capacity_bytes` are given out as tensors."""

    def __init__(self, name: str, capacity_bytes: int, *, threads: int | None = None) -> None:
        """`threads` fault large buffers in; None: the processors there are, at most four."""
        self._name: Final = name
        self._capacity: Final = capacity_bytes
        self._ledger: Final = Ledger(name, capacity_bytes)
        self._threads: Final = threads or min(_MAX_THREADS, len(os.sched_getaffinity(0)))

    @property
    def name(self) -> str:
        """The device's name on the wire."""
        return self._name

    def facts(self) -> DeviceFacts:
        """What it has, now."""
        allocated = self._ledger.allocated_bytes
        return DeviceFacts(
            name=self._name,
            kind=KIND,
            description="host memory, shareable with other processes",
            memory_bytes=self._capacity,
            free_bytes=self._capacity - allocated,
            allocated_bytes=allocated,
            alignment_bytes=ALIGNMENT_BYTES,
            max_allocation_bytes=self._capacity,
            capabilities=_CAPABILITIES,
        )

    def allocate(self, nbytes: int, accounted_bytes: int, stop: threading.Event | None = None) -> HostBuffer:
        """Shared memory, zeroed and faulted in. Raises CapacityError, DeviceError or CancelledLoadError."""
        if nbytes <= 0 or not 0 <= accounted_bytes <= nbytes:
            raise DeviceError(f"a buffer cannot have {nbytes} bytes", device=self._name, operation="allocate")
        self._ledger.reserve(accounted_bytes)
        memory: SharedMemory | None = None
        try:
            memory = SharedMemory(f"ggufd:{self._name}", nbytes)
            memory.populate(self._threads, stop)
            return HostBuffer(self._name, memory, accounted_bytes, self._ledger)
        except BaseException as error:
            if memory is not None:
                memory.close()
            self._ledger.release(accounted_bytes)
            if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORT_OF_MEMORY):
                raise out_of_memory(self._name, nbytes, self._ledger.free_bytes, "the system has no more") from error
            want = shortage(error, f"allocating {nbytes} bytes on device {self._name}")
            if want is not None:
                raise want from error
            if isinstance(error, OSError | OverflowError | ValueError):
                raise DeviceError(
                    f"device {self._name} cannot allocate {nbytes} bytes: {error}",
                    device=self._name,
                    operation="allocate",
                ) from error
            raise

    def import_host(self, mapped: MappedRange, accounted_bytes: int) -> MappedBuffer | None:
        """The mapping itself, as a buffer. Raises CapacityError."""
        self._ledger.reserve(accounted_bytes)
        return MappedBuffer(self._name, mapped, accounted_bytes, self._ledger)
