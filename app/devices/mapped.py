"""A buffer that is a mapped file range, the same for every device that can take host memory."""

import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.devices.ledger import Ledger
from app.errors import DeviceError
from app.modelfile.source import MappedRange


class MappedBuffer:
    """Owns `mapped`. Nothing is written to it and nobody gets a view: the daemon never touches a mapped file page."""

    def __init__(self, device: str, mapped: MappedRange, accounted_bytes: int, ledger: Ledger) -> None:
        self.nbytes: int = mapped.nbytes
        self._device: Final = device
        self._mapped: Final = mapped
        self._accounted = accounted_bytes
        self._ledger: Final = ledger
        self._lock: Final = threading.Lock()

    def write(self, offset: int, data: memoryview, stop: threading.Event | None = None) -> None:
        """Refused: the file is not ours to change."""
        raise DeviceError("a mapped file cannot be written", device=self._device, operation="write")

    def view(self, offset: int, length: int) -> memoryview | None:
        """None: see the class."""
        return None

    def read_into(self, offset: int, target: memoryview) -> None:
        """Read the bytes from the file behind the mapping. Raises FileError if it was cut short."""
        self._mapped.read_into(offset, target)

    def read_rows(self, offset: int, rows: NDArray[np.int64], target: NDArray[np.uint8]) -> None:
        """Read rows of a table at byte `offset` from the file. Raises FileError if it was cut short."""
        self._mapped.read_rows(offset, rows, target)

    def lock(self, stop: threading.Event | None = None) -> str | None:
        """Lock the mapping's pages."""
        return self._mapped.lock(stop)

    def free(self) -> int:
        """Unmap, and give the accounted bytes back."""
        with self._lock:
            released, self._accounted = self._accounted, 0
        self._mapped.close()
        self._ledger.release(released)
        return released
