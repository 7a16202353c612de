import threading
import time
from pathlib import Path

import pytest

from app.devices.checksum import position_checksum
from app.devices.facts import Capabilities
from app.devices.simulated import SimulatedBackend, SimulatedFailures
from app.errors import CancelledLoadError, CapacityError, DeviceError
from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.modelfile.source import MappedRange, open_source
from app.modelfile.writer import write_gguf
from app.units import KIB, MIB


def failing(**failures: int | bool) -> SimulatedBackend:
    return SimulatedBackend("sim0", MIB, keep_bytes=True, failures=SimulatedFailures(**failures))  # type: ignore[arg-type]


@pytest.fixture
def mapped(tmp_path: Path) -> MappedRange:
    """The first tensor's bytes of a small file."""
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "llama"}, [("t", BY_NAME["f32"], (64,), 7)])
    model = read_model_file(path)
    with open_source(model.shards[0]) as source:
        return source.map_range(model.tensors[0].offset, 256)


def test_a_checksum_instead_of_the_bytes() -> None:
    """Writes in any order leave the checksum and the count of what was written; the bytes cannot be read."""
    buffer = SimulatedBackend("sim0", MIB).allocate(1000, 1000)
    data = bytes(range(200))
    buffer.write(150, memoryview(data)[120:])
    buffer.write(30, memoryview(data)[:120])
    assert (position_checksum(data, 30), 200) == (buffer.checksum, buffer.written_bytes)
    assert None is buffer.view(0, 1)
    with pytest.raises(DeviceError, match="keeps a checksum"):
        buffer.read_into(0, memoryview(bytearray(1)))


def test_a_device_can_have_any_memory() -> None:
    """Petabytes can be allocated where only a checksum is kept; what others use is not free."""
    device = SimulatedBackend("sim0", 1 << 52, free_bytes=1 << 51)
    buffer = device.allocate(1 << 51, 1 << 51)
    assert (1 << 52, 0, 1 << 51) == (
        device.facts().memory_bytes,
        device.facts().free_bytes,
        device.facts().allocated_bytes,
    )
    with pytest.raises(CapacityError):
        device.allocate(1, 1)
    assert 1 << 51 == buffer.free() == device.facts().free_bytes


def test_bytes_the_host_cannot_keep() -> None:
    """Keeping more bytes than the host has is a CapacityError, and takes nothing."""
    device = SimulatedBackend("sim0", 1 << 62, keep_bytes=True)
    with pytest.raises(CapacityError, match="the host cannot keep them"):
        device.allocate(1 << 60, 1 << 60)
    assert 0 == device.facts().allocated_bytes


def test_facts_are_as_chosen() -> None:
    """Capabilities, alignment and the largest allocation are what the device was given."""
    chosen = Capabilities(mmap_support=False, events=False)
    device = SimulatedBackend("sim0", MIB, capabilities=chosen, alignment_bytes=512, max_allocation_bytes=1000)
    facts = device.facts()
    assert ("simulated", chosen, 512, 1000) == (
        facts.kind,
        facts.capabilities,
        facts.alignment_bytes,
        facts.max_allocation_bytes,
    )
    with pytest.raises(DeviceError, match="more than one allocation"):
        device.allocate(1001, 1001)


def test_the_nth_allocation_fails() -> None:
    """fail_allocation=2 fails the second allocation alone, and takes nothing for it."""
    device = failing(fail_allocation=2)
    device.allocate(100, 100)
    with pytest.raises(DeviceError) as caught:
        device.allocate(100, 100)
    assert ("sim0", "allocate") == (caught.value.facts["device"], caught.value.facts["operation"])
    device.allocate(100, 100)
    assert 200 == device.facts().allocated_bytes


def test_the_nth_write_fails() -> None:
    """fail_write=2 fails the second write alone."""
    buffer = failing(fail_write=2).allocate(100, 100)
    buffer.write(0, memoryview(b"a"))
    with pytest.raises(DeviceError, match="write 2 fails"):
        buffer.write(1, memoryview(b"b"))
    buffer.write(2, memoryview(b"c"))
    assert 2 == buffer.written_bytes


def test_writes_fail_after_so_many_bytes() -> None:
    """fail_after_bytes lets exactly so many bytes by, over all buffers, and none after."""
    device = failing(fail_after_bytes=10)
    one, two = device.allocate(100, 100), device.allocate(100, 100)
    one.write(0, memoryview(bytes(6)))
    two.write(0, memoryview(bytes(4)))
    for buffer in (one, two):
        with pytest.raises(DeviceError, match="fail after 10 bytes"):
            buffer.write(50, memoryview(b"x"))


def test_taking_a_mapped_file(mapped: MappedRange) -> None:
    """A device with buffer_from_host_ptr takes a mapping as it is, accounted, and reads through it."""
    device = SimulatedBackend("sim0", MIB)
    buffer = device.import_host(mapped, 200)
    assert buffer is not None
    target = bytearray(256)
    buffer.read_into(0, memoryview(target))
    assert (200, True) == (device.facts().allocated_bytes, any(target))
    assert (200, 0) == (buffer.free(), device.facts().allocated_bytes)


def test_declining_and_failing_to_take_a_mapped_file(mapped: MappedRange) -> None:
    """Without the capability, or told to refuse, the answer is None; told to fail, DeviceError; nothing is taken."""
    unable = SimulatedBackend("sim0", MIB, capabilities=Capabilities(buffer_from_host_ptr=False))
    assert None is unable.import_host(mapped, 256)
    assert None is failing(refuse_import=True).import_host(mapped, 256)
    device = failing(fail_import=True)
    with pytest.raises(DeviceError) as caught:
        device.import_host(mapped, 256)
    assert ("import_host", 0) == (caught.value.facts["operation"], device.facts().allocated_bytes)
    mapped.close()


def test_a_slow_device_is_slow_for_all_its_writers_together() -> None:
    """Two threads writing 50 KiB each at 500 KiB/s take a fifth of a second together."""
    device = failing(bytes_per_second=500 * KIB)
    buffer = device.allocate(100 * KIB, 100 * KIB)

    def write(start: int) -> None:
        for at in range(start, start + 50 * KIB, 10 * KIB):
            buffer.write(at, memoryview(bytes(10 * KIB)))

    begin = time.monotonic()
    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 50 * KIB)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.19 < time.monotonic() - begin < 2


def test_waiting_for_a_slow_device_can_be_cut_short() -> None:
    """A write that would take hours ends as soon as `stop` is set."""
    buffer = failing(bytes_per_second=1).allocate(100_000, 100_000)
    stop = threading.Event()
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(CancelledLoadError):
        buffer.write(0, memoryview(bytes(100_000)), stop)
    assert time.monotonic() - begin < 2
    timer.join()


def test_there_is_nothing_to_lock() -> None:
    """Memory that is not the host's counts as locked."""
    assert None is SimulatedBackend("sim0", MIB).allocate(1, 1).lock()
