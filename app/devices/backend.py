"""The seam between loading and hardware: two small protocols. The fake beside them is `simulated.py`, and it ships."""

import threading
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.devices.facts import DeviceFacts
from app.modelfile.source import MappedRange


class Buffer(Protocol):
    """Memory on one device, zeroed at first. Thread-safe for writes to disjoint ranges."""

    nbytes: int

    def write(self, offset: int, data: memoryview, stop: threading.Event | None = None) -> None:
        """Copy `data` to byte `offset`. A device that makes the caller wait gives up when `stop` is set.

        Raises DeviceError if the device fails, CancelledLoadError if it gave up.
        """
        ...

    def view(self, offset: int, length: int) -> memoryview | None:
        """A writable view of our own memory to read a file straight into; None where the host cannot address it.

        Whoever asks for a view releases it before the buffer is freed.
        """
        ...

    def read_into(self, offset: int, target: memoryview) -> None:
        """Copy bytes `offset`… into `target`. Raises DeviceError if the device keeps no bytes (or fails)."""
        ...

    def read_rows(self, offset: int, rows: NDArray[np.int64], target: NDArray[np.uint8]) -> None:
        """Copy rows of a table that begins at byte `offset` into the rows of `target`, as wide as they are.

        `target` is uint8 `[len(rows), bytes of a row]`, contiguous. Raises as `read_into`.
        """
        ...

    def lock(self, stop: threading.Event | None = None) -> str | None:
        """Keep the memory from being swapped out; answers None, or why it is not locked (an errno's name).

        Nothing stays locked after a refusal, or after `stop` was set (`ECANCELED`). Freeing unlocks.
        """
        ...

    def free(self) -> int:
        """Give the memory back; answers how many accounted bytes that released. Safe to call twice (then 0).

        Memory that somebody still views cannot go: then the answer is 0, the bytes stay accounted, and a later call
        tries again.
        """
        ...


class Backend(Protocol):
    """One device."""

    @property
    def name(self) -> str:
        """The device's name on the wire."""
        ...

    def facts(self) -> DeviceFacts:
        """What it is and has, now."""
        ...

    def allocate(self, nbytes: int, accounted_bytes: int, stop: threading.Event | None = None) -> Buffer:
        """A zeroed buffer of `nbytes`, of which `accounted_bytes` are tensor bytes (the rest is alignment padding).

        The capacity is enforced on accounted bytes, so that what a plan says fits does fit, to the byte. Large memory
        takes seconds to fault in: setting `stop` ends that early.
        Raises CapacityError, DeviceError or CancelledLoadError; nothing is allocated then.
        """
        ...

    def import_host(self, mapped: MappedRange, accounted_bytes: int) -> Buffer | None:
        """A buffer that *is* a mapped file range; None where the device cannot: then copying is the ordinary path.

        The buffer owns `mapped` from then on; with None, or an error, the caller keeps it. Mapped bytes count against
        the capacity like copied ones. Raises CapacityError or DeviceError.
        """
        ...
