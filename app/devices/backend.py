"""The seam between loading and hardware: two small protocols. The fake beside them is `simulated.py`, and it ships."""

from typing import Protocol

from app.devices.facts import DeviceFacts
from app.modelfile.source import MappedRange


class Buffer(Protocol):
    """Memory on one device. Thread-safe for writes to disjoint ranges."""

    nbytes: int

    def write(self, offset: int, data: memoryview) -> None:
        """Copy `data` to byte `offset`. Raises DeviceError if the device fails."""
        ...

    def view(self, offset: int, length: int) -> memoryview | None:
        """A writable view of our own memory to read a file straight into; None where the host cannot address it."""
        ...

    def read_into(self, offset: int, target: memoryview) -> None:
        """Copy bytes `offset`… into `target`. Raises DeviceError if the device keeps no bytes (or fails)."""
        ...

    def free(self) -> int:
        """Give the memory back; answers how many accounted bytes that released. Safe to call twice (then 0)."""
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

    def allocate(self, nbytes: int, accounted_bytes: int) -> Buffer:
        """A buffer of `nbytes`, of which `accounted_bytes` are tensor bytes (the rest is alignment padding).

        The capacity is enforced on accounted bytes, so that what a plan says fits does fit, to the byte.
        Raises CapacityError (nothing is allocated then) or DeviceError.
        """
        ...

    def import_host(self, mapped: MappedRange, accounted_bytes: int) -> Buffer | None:
        """A buffer that *is* a mapped file range; None where the device cannot: then copying is the ordinary path.

        The buffer owns `mapped` from then on. Mapped bytes count against the capacity like copied ones.
        """
        ...
