"""Devices that are not there: any memory, any capabilities, any failure. For trying plans and rehearsing faults.

Every byte is accounted for. A simulated device keeps a checksum of what was written (`checksum.position_checksum`)
instead of the bytes, unless told to keep them; the host cannot address its memory, so loads take the path that any
real accelerator takes.
"""

import threading
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.devices.checksum import MASK, position_checksum
from app.devices.facts import Capabilities, DeviceFacts
from app.devices.ledger import Ledger, out_of_memory
from app.devices.mapped import MappedBuffer
from app.errors import CancelledLoadError, DeviceError
from app.modelfile.source import MappedRange
from app.units import human_bytes

KIND: Final = "simulated"
ALIGNMENT_BYTES: Final = 128
_EVERYTHING: Final = Capabilities()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFailures:
    """What goes wrong, counted from the device's creation, from 1. None, False: nothing.

    `fail_allocation`, `fail_write`: that one call fails. `fail_after_bytes`: the write that goes past so many bytes
    fails, and all after it. `fail_import`: taking a mapped range fails; `refuse_import`: it is declined, as by a
    device that cannot. `bytes_per_second`: all writes together are no faster.
    """

    fail_allocation: int | None = None
    fail_write: int | None = None
    fail_after_bytes: int | None = None
    fail_import: bool = False
    refuse_import: bool = False
    bytes_per_second: int | None = None


class SimulatedBuffer:
    """Memory of a simulated device."""

    def __init__(self, device: "SimulatedBackend", nbytes: int, accounted_bytes: int, kept: NDArray[np.uint8] | None):
        self.nbytes: int = nbytes
        self._device: Final = device
        self._kept = kept
        self._accounted = accounted_bytes
        self._lock: Final = threading.Lock()
        self._freed = False
        self._checksum = 0
        self._written = 0

    @property
    def checksum(self) -> int:
        """`position_checksum` of everything written, as long as no byte was written twice."""
        return self._checksum

    @property
    def written_bytes(self) -> int:
        """How many bytes were written; beside the checksum, it tells zeros from nothing."""
        return self._written

    def write(self, offset: int, data: memoryview, stop: threading.Event | None = None) -> None:
        """Take `data`. Raises DeviceError as the failures ask, CancelledLoadError if `stop` was set while waiting."""
        self._require("write", offset, data.nbytes)
        self._device.pass_write(data.nbytes, stop)
        added = position_checksum(data, offset)
        if self._kept is not None:
            np.copyto(self._kept[offset : offset + data.nbytes], np.frombuffer(data, np.uint8))
        with self._lock:
            self._checksum = (self._checksum + added) & MASK
            self._written += data.nbytes

    def view(self, offset: int, length: int) -> memoryview | None:
        """None: the host cannot address it."""
        return None

    def read_into(self, offset: int, target: memoryview) -> None:
        """Copy kept bytes into `target`. Raises DeviceError where only a checksum is kept."""
        np.copyto(np.frombuffer(target, np.uint8), self._readable(offset, target.nbytes))

    def read_rows(self, offset: int, rows: NDArray[np.int64], target: NDArray[np.uint8]) -> None:
        """Copy kept rows into `target`. Raises DeviceError where only a checksum is kept."""
        width = target.shape[1]
        n_rows = int(rows.max(initial=-1)) + 1
        table = self._readable(offset, n_rows * width).reshape(n_rows, width)
        np.take(table, rows, axis=0, out=target, mode="clip")

    def lock(self, stop: threading.Event | None = None) -> str | None:
        """None: memory that is not the host's is never swapped out."""
        return None

    def free(self) -> int:
        """Give the accounted bytes back."""
        with self._lock:
            if self._freed:
                return 0
            self._freed, self._kept = True, None
        self._device.give_back(self._accounted)
        return self._accounted

    def _readable(self, offset: int, length: int) -> NDArray[np.uint8]:
        kept = self._kept
        self._require("read", offset, length)
        if kept is None:
            raise DeviceError(
                f"simulated device {self._device.name} keeps a checksum, not the bytes (see keep_bytes)",
                code="bytes_not_kept",
                device=self._device.name,
                operation="read",
            )
        return kept[offset : offset + length]

    def _require(self, operation: str, offset: int, length: int) -> None:
        name = self._device.name
        if self._freed:
            raise DeviceError("the buffer was freed", device=name, operation=operation)
        if offset < 0 or offset + length > self.nbytes:
            raise DeviceError(
                f"{operation} of {length} bytes at {offset} leaves a buffer of {self.nbytes}",
                device=name,
                operation=operation,
            )


class SimulatedBackend:
    """One simulated device. Sizes in bytes; `free_bytes` None means all of `memory_bytes`."""

    def __init__(
        self,
        name: str,
        memory_bytes: int,
        *,
        free_bytes: int | None = None,
        capabilities: Capabilities = _EVERYTHING,
        alignment_bytes: int = ALIGNMENT_BYTES,
        max_allocation_bytes: int | None = None,
        keep_bytes: bool = False,
        failures: SimulatedFailures = SimulatedFailures(),
    ) -> None:
        self._name: Final = name
        self._memory: Final = memory_bytes
        self._free_at_first: Final = memory_bytes if free_bytes is None else min(free_bytes, memory_bytes)
        self._capabilities: Final = capabilities
        self._alignment: Final = alignment_bytes
        self._max_allocation: Final = memory_bytes if max_allocation_bytes is None else max_allocation_bytes
        self._keep: Final = keep_bytes
        self._failures: Final = failures
        self._ledger: Final = Ledger(name, self._free_at_first)
        self._lock: Final = threading.Lock()
        self._allocations = 0
        self._writes = 0
        self._written = 0
        self._idle_at = 0.0  # when the writes accepted so far are through, by the monotonic clock

    @property
    def name(self) -> str:
        """The device's name on the wire."""
        return self._name

    def facts(self) -> DeviceFacts:
        """What it has, now."""
        allocated = self._ledger.allocated_bytes
        kept = "bytes" if self._keep else "a checksum"
        return DeviceFacts(
            name=self._name,
            kind=KIND,
            description=f"simulated, keeps {kept}",
            memory_bytes=self._memory,
            free_bytes=self._free_at_first - allocated,
            allocated_bytes=allocated,
            alignment_bytes=self._alignment,
            max_allocation_bytes=self._max_allocation,
            capabilities=self._capabilities,
        )

    def allocate(self, nbytes: int, accounted_bytes: int, stop: threading.Event | None = None) -> SimulatedBuffer:
        """Simulated memory. Raises CapacityError, or DeviceError as the failures ask."""
        with self._lock:
            self._allocations += 1
            failing = self._allocations == self._failures.fail_allocation
        if failing:
            raise self._failure("allocate", f"allocation {self._allocations} fails, as asked")
        if nbytes <= 0 or not 0 <= accounted_bytes <= nbytes:
            raise self._failure("allocate", f"a buffer cannot have {nbytes} bytes")
        if nbytes > self._max_allocation:
            raise self._failure("allocate", f"{human_bytes(nbytes)} are more than one allocation may have")
        self._ledger.reserve(accounted_bytes)
        try:
            kept = np.zeros(nbytes, np.uint8) if self._keep else None
        except (MemoryError, ValueError) as error:
            self._ledger.release(accounted_bytes)
            raise out_of_memory(self._name, nbytes, self._ledger.free_bytes, "the host cannot keep them") from error
        return SimulatedBuffer(self, nbytes, accounted_bytes, kept)

    def import_host(self, mapped: MappedRange, accounted_bytes: int) -> MappedBuffer | None:
        """The mapping itself, if the device can take host memory. Raises CapacityError or DeviceError."""
        if self._failures.fail_import:
            raise self._failure("import_host", "taking host memory fails, as asked")
        if self._failures.refuse_import or not self._capabilities.buffer_from_host_ptr:
            return None
        self._ledger.reserve(accounted_bytes)
        return MappedBuffer(self._name, mapped, accounted_bytes, self._ledger)

    def pass_write(self, nbytes: int, stop: threading.Event | None) -> None:
        """Let a write of `nbytes` by: count it, fail it, slow it down. For this device's buffers."""
        with self._lock:
            self._writes += 1
            self._written += nbytes
            limit = self._failures.fail_after_bytes
            if self._writes == self._failures.fail_write:
                raise self._failure("write", f"write {self._writes} fails, as asked")
            if limit is not None and self._written > limit:
                raise self._failure("write", f"writes fail after {limit} bytes, as asked")
            if not self._failures.bytes_per_second:
                return
            self._idle_at = max(self._idle_at, time.monotonic()) + nbytes / self._failures.bytes_per_second
            wait = self._idle_at - time.monotonic()
        if stop is None:
            time.sleep(max(0.0, wait))
        elif stop.wait(wait):
            raise CancelledLoadError("cancelled while a device was writing")

    def give_back(self, accounted_bytes: int) -> None:
        """Take back what a buffer of this device held."""
        self._ledger.release(accounted_bytes)

    def _failure(self, operation: str, what: str) -> DeviceError:
        return DeviceError(f"device {self._name}: {what}", device=self._name, operation=operation)
