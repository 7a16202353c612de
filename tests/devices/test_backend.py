"""What every backend owes its callers, whatever it is."""

import threading
from collections.abc import Callable

import pytest

from app.devices.backend import Backend
from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend
from app.errors import CapacityError, DeviceError

Make = Callable[[int], Backend]


@pytest.fixture(params=["host", "simulated"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a device that keeps bytes, of a given memory."""
    if request.param == "host":
        return lambda nbytes: HostBackend("dev", nbytes)
    return lambda nbytes: SimulatedBackend("dev", nbytes, keep_bytes=True)


def test_memory_is_zeroed_and_holds_what_is_written(make: Make) -> None:
    """A fresh buffer reads as zeros; writes are read back at their place."""
    buffer = make(10_000).allocate(9_000, 8_000)
    target = bytearray(b"x" * 9_000)
    buffer.read_into(0, memoryview(target))
    assert bytes(9_000) == bytes(target)
    buffer.write(100, memoryview(b"hello"))
    buffer.read_into(98, memoryview(target)[:9])
    assert b"\0\0hello\0\0" == bytes(target[:9])
    assert 8_000 == buffer.free()


def test_the_capacity_is_enforced_to_the_byte(make: Make) -> None:
    """Accounted bytes up to the capacity are given out, padding is free; one byte more is refused and takes nothing."""
    device = make(1_000)
    first = device.allocate(700, 600)
    with pytest.raises(CapacityError) as caught:
        device.allocate(401, 401)
    assert [{"device": "dev", "needed_bytes": 401, "free_bytes": 400}] == caught.value.facts["devices"]
    second = device.allocate(900, 400)
    facts = device.facts()
    assert (1_000, 0, 1_000) == (facts.memory_bytes, facts.free_bytes, facts.allocated_bytes)
    assert (600, 400) == (first.free(), second.free())
    assert (1_000, 0) == (device.facts().free_bytes, device.facts().allocated_bytes)


def test_freeing_twice_gives_back_once(make: Make) -> None:
    """The second free answers 0, and nothing can be done with the buffer after the first."""
    device = make(100)
    buffer = device.allocate(100, 100)
    assert (100, 0) == (buffer.free(), buffer.free())
    assert 0 == device.facts().allocated_bytes
    with pytest.raises(DeviceError, match="freed"):
        buffer.write(0, memoryview(b"x"))
    with pytest.raises(DeviceError, match="freed"):
        buffer.read_into(0, memoryview(bytearray(1)))


@pytest.mark.parametrize(("offset", "length"), [(0, 101), (100, 1), (-1, 1), (2**62, 1)])
def test_nothing_is_touched_outside_a_buffer(make: Make, offset: int, length: int) -> None:
    """A write or read that leaves the buffer is a DeviceError."""
    buffer = make(100).allocate(100, 100)
    with pytest.raises(DeviceError, match="leaves"):
        buffer.write(offset, memoryview(bytes(length)))
    with pytest.raises(DeviceError, match="leaves"):
        buffer.read_into(offset, memoryview(bytearray(length)))
    assert 100 == buffer.free()


@pytest.mark.parametrize("nbytes", [0, -1])
def test_empty_buffers_are_refused(make: Make, nbytes: int) -> None:
    """There is no buffer of no bytes, and asking for one takes nothing."""
    device = make(100)
    with pytest.raises(DeviceError):
        device.allocate(nbytes, 0)
    assert 0 == device.facts().allocated_bytes


def test_disjoint_writes_from_many_threads(make: Make) -> None:
    """Eight threads that write disjoint ranges at once all land."""
    buffer = make(1 << 20).allocate(1 << 20, 1 << 20)
    step = (1 << 20) // 8

    def write(index: int) -> None:
        for at in range(index * step, (index + 1) * step, 4096):
            buffer.write(at, memoryview(bytes([index + 1]) * 4096))

    threads = [threading.Thread(target=write, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    target = bytearray(1 << 20)
    buffer.read_into(0, memoryview(target))
    assert b"".join(bytes([index + 1]) * step for index in range(8)) == bytes(target)
    buffer.free()


def test_threads_cannot_take_more_than_there_is(make: Make) -> None:
    """When many allocate at once, exactly as many succeed as fit."""
    device = make(10 * 4096)
    outcomes: list[bool] = []

    def take() -> None:
        try:
            device.allocate(4096, 4096)
            outcomes.append(True)
        except CapacityError:
            outcomes.append(False)

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (10, 6) == (outcomes.count(True), outcomes.count(False))
    assert 0 == device.facts().free_bytes
