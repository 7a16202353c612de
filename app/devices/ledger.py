"""What a device has given out, to the byte: the one place where a capacity is enforced."""

import threading
from typing import Final

from app.errors import CapacityError
from app.units import human_bytes


class Ledger:
    """Accounted bytes of one device against its capacity. Thread-safe."""

    def __init__(self, device: str, capacity_bytes: int) -> None:
        self._device: Final = device
        self._capacity: Final = capacity_bytes
        self._allocated = 0
        self._lock: Final = threading.Lock()

    @property
    def allocated_bytes(self) -> int:
        """What is given out now."""
        return self._allocated

    @property
    def free_bytes(self) -> int:
        """What can still be given out."""
        return self._capacity - self._allocated

    def reserve(self, nbytes: int) -> None:
        """Take `nbytes`. Raises CapacityError, and takes nothing, if they are not there."""
        with self._lock:
            if self._allocated + nbytes > self._capacity:
                raise out_of_memory(self._device, nbytes, self.free_bytes)
            self._allocated += nbytes

    def release(self, nbytes: int) -> None:
        """Give back what `reserve` took."""
        with self._lock:
            self._allocated -= nbytes
            assert self._allocated >= 0, f"{self._device} was given back more than it gave"


def out_of_memory(device: str, needed_bytes: int, free_bytes: int, detail: str = "") -> CapacityError:
    """The error that says one device is short."""
    more = f": {detail}" if detail else ""
    return CapacityError(
        f"device {device} has {human_bytes(free_bytes)} free, {human_bytes(needed_bytes)} are needed{more}",
        devices=[{"device": device, "needed_bytes": needed_bytes, "free_bytes": free_bytes}],
    )
