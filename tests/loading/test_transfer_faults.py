import threading
import time

import pytest

from app.devices.backend import Backend
from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend, SimulatedFailures
from app.errors import CancelledLoadError, CapacityError, DeviceError, FileError, GgufdError
from app.ggml import BY_NAME
from app.loading.transfer import move
from app.units import GIB, KIB, MIB
from tests.loading.moving import backends_for, free_all, layout_for, one_tensor
from tests.loading.plans import (
    MemorySource,
    make_buffers,
)

F32 = BY_NAME["f32"]


class FaultySource(MemorySource):
    """Fails the read that contains byte `at`, holding on to the target as a real traceback would."""

    def __init__(self, data: bytes, at: int, error: BaseException) -> None:
        super().__init__(data)
        self._at = at
        self._error = error

    def read_into(self, offset: int, target: memoryview) -> None:
        if offset <= self._at < offset + target.nbytes:
            held = target[:1]
            held[:] = b"x"
            raise self._error
        super().read_into(offset, target)


@pytest.mark.parametrize("kind", ["host", "checksum", "mixed"])
@pytest.mark.parametrize(
    ("raised", "expected", "code"),
    [
        (FileError("cut short", code="truncated"), FileError, "truncated"),
        (OSError(5, "Input/output error"), FileError, "read_failed"),
        (MemoryError(), CapacityError, "insufficient_memory"),
    ],
)
def test_the_first_error_stops_the_rest(
    kind: str, raised: BaseException, expected: type[GgufdError], code: str
) -> None:
    """A failing read ends the move with one typed error; no thread and no view is left, so all memory can go."""
    plan = one_tensor(0, (1024, 8192), (256, 768), ["d0", "d1"])
    backends = backends_for(plan, kind)
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    before = threading.active_count()
    source = FaultySource(bytes(plan.tensors[0].nbytes), 9 * MIB, raised)
    with pytest.raises(expected) as caught:
        move(layout.steps, [source], buffers, threading.Event(), threads=2)
    assert code == caught.value.code
    assert before == threading.active_count()
    assert sum(nbytes for _, nbytes in source.reads) < 16 * MIB
    free_all(buffers, backends)


def test_a_device_that_fails_ends_the_move() -> None:
    """A write that fails after so many bytes is a DeviceError naming the device, and nothing goes on after it."""
    plan = one_tensor(0, (1024, 4096), (512, 512), ["d0", "d1"])
    backends: dict[str, Backend] = {
        "d0": HostBackend("d0", GIB),
        "d1": SimulatedBackend("d1", GIB, failures=SimulatedFailures(fail_after_bytes=3 * MIB)),
    }
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    source = MemorySource(bytes(plan.tensors[0].nbytes))
    with pytest.raises(DeviceError, match="d1") as caught:
        move(layout.steps, [source], buffers, threading.Event(), threads=2)
    assert ("d1", "write") == (caught.value.facts["device"], caught.value.facts["operation"])
    free_all(buffers, backends)


@pytest.mark.parametrize("bytes_per_second", [200 * MIB, 10 * KIB])
def test_a_cancelled_move_ends_within_two_seconds(bytes_per_second: int) -> None:
    """Once `stop` is set the move ends within two seconds, even on a device that would take minutes for one block."""
    plan = one_tensor("mirrored", (1 << 20, 256), (), ["d0"])
    backends: dict[str, Backend] = {
        "d0": SimulatedBackend("d0", 2 * GIB, failures=SimulatedFailures(bytes_per_second=bytes_per_second))
    }
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    stop = threading.Event()
    timer = threading.Timer(0.2, stop.set)

    class Zeros:
        size = 1 << 30

        def read_into(self, offset: int, target: memoryview) -> None:
            assert offset + target.nbytes <= self.size

        def close(self) -> None:
            """Nothing to give back."""

    timer.start()
    begin = time.monotonic()
    with pytest.raises(CancelledLoadError):
        move(layout.steps, [Zeros()], buffers, stop, threads=4)
    assert time.monotonic() - begin < 2
    timer.join()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ggufd-move")]
    free_all(buffers, backends)


def test_a_move_cancelled_before_it_begins_reads_nothing() -> None:
    """A `stop` that is already set means not a single read."""
    plan = one_tensor("mirrored", (1024, 1024), (), ["d0"])
    backends = backends_for(plan, "host")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    source = MemorySource(bytes(plan.tensors[0].nbytes))
    stop = threading.Event()
    stop.set()
    with pytest.raises(CancelledLoadError):
        move(layout.steps, [source], buffers, stop)
    assert [] == source.reads
    free_all(buffers, backends)


def test_an_error_in_the_callers_progress_surfaces() -> None:
    """What the caller's own callback raises comes out as it is, after the threads have ended."""
    plan = one_tensor("mirrored", (1024, 4096), (), ["d0"])
    backends = backends_for(plan, "host")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)

    def refuse(device: str, nbytes: int) -> None:
        raise LookupError(f"{device} {nbytes}")

    with pytest.raises(LookupError, match="d0"):
        move(
            layout.steps,
            [MemorySource(bytes(plan.tensors[0].nbytes))],
            buffers,
            threading.Event(),
            progress=refuse,
        )
    free_all(buffers, backends)
