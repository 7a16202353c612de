import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from app.devices import shared
from app.devices.host import HostBackend
from app.errors import BusyError, CancelledLoadError, CapacityError, DeviceError, FileError, GgufdError
from app.ggml import BY_NAME
from app.modelfile import libc
from app.modelfile.reader import read_model_file
from app.modelfile.source import MappedRange, open_source
from app.modelfile.writer import write_gguf
from app.units import GIB, MIB

TENSOR_BYTES = 64 * 64 * 4


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def shared_mappings() -> list[str]:
    """The shared memory and the model files mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(line.split()[-1] for line in lines if "memfd:" in line or ".gguf" in line)


@pytest.fixture
def mapped(tmp_path: Path) -> MappedRange:
    """The first tensor's bytes of a small file."""
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "llama"}, [("t", BY_NAME["f32"], (64, 64), 7)])
    model = read_model_file(path)
    with open_source(model.shards[0]) as source:
        return source.map_range(model.tensors[0].offset, TENSOR_BYTES)


def test_nothing_is_left_after_a_hundred_cycles() -> None:
    """After 100 allocations and frees, descriptors and mappings are exactly as before."""
    device = HostBackend("host", GIB)
    device.allocate(MIB, MIB).free()
    gc.collect()
    before = descriptors(), len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(100):
        buffer = device.allocate(MIB + 5, MIB)
        view = buffer.view(7, 100)
        assert view is not None
        view[:5] = b"hello"
        view.release()
        assert MIB == buffer.free()
    assert before == (descriptors(), len(Path("/proc/self/maps").read_text().splitlines()))
    assert [] == [line for line in shared_mappings() if "memfd" in line]


def test_memory_is_there_before_it_is_used() -> None:
    """An allocated buffer is resident at once: the first touch has been paid for."""

    def shared_resident() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssShmem"))

    before = shared_resident()
    buffer = HostBackend("host", GIB).allocate(130 * MIB, 130 * MIB)
    assert shared_resident() - before >= 130 * MIB
    buffer.free()
    assert shared_resident() - before < MIB


def test_a_view_that_lives_keeps_the_memory_accounted() -> None:
    """Memory somebody still views is not given back: free answers 0, and works once the view is gone."""
    device = HostBackend("host", GIB)
    buffer = device.allocate(MIB, 1000)
    view = buffer.view(0, 10)
    assert view is not None
    assert (0, 1000) == (buffer.free(), device.facts().allocated_bytes)
    view[:2] = b"ok"
    view.release()
    assert (1000, 0) == (buffer.free(), device.facts().allocated_bytes)
    with pytest.raises(DeviceError, match="freed"):
        buffer.view(0, 1)


def test_a_view_in_a_cycle_is_collected() -> None:
    """A view that only garbage still holds does not keep the memory."""
    buffer = HostBackend("host", GIB).allocate(4096, 4096)
    cycle: list[object] = [buffer.view(0, 10)]
    cycle.append(cycle)
    del cycle
    assert 4096 == buffer.free()


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EFAULT])
def test_memory_the_system_does_not_have(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """When the kernel has no memory left the answer is a CapacityError, and nothing stays allocated."""

    def refuse(address: int, length: int, advice: int) -> None:
        raise OSError(code, os.strerror(code))

    device = HostBackend("host", GIB)
    before = descriptors()
    monkeypatch.setattr(libc, "advise", refuse)
    with pytest.raises(CapacityError, match="the system has no more"):
        device.allocate(200 * MIB, 200 * MIB)
    assert (before, 0, []) == (descriptors(), device.facts().allocated_bytes, shared_mappings())


def test_an_old_kernel_does_without_populating(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not know how to populate gives a buffer all the same."""

    def unknown(address: int, length: int, advice: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(libc, "advise", unknown)
    buffer = HostBackend("host", GIB).allocate(MIB, MIB)
    buffer.write(0, memoryview(b"x"))
    assert MIB == buffer.free()


@pytest.mark.parametrize(
    ("refusal", "kind", "says"),
    [
        (errno.EMFILE, BusyError, "allocating 1000 bytes on device host0 failed"),
        (errno.EPERM, DeviceError, "host0 cannot allocate 1000 bytes"),
    ],
)
def test_descriptors_can_run_out(
    monkeypatch: pytest.MonkeyPatch, refusal: int, kind: type[GgufdError], says: str
) -> None:
    """Without descriptors the daemon is busy, any other refusal of the system is the device's; nothing stays."""

    def refuse(name: str, flags: int) -> int:
        raise OSError(refusal, os.strerror(refusal))

    device = HostBackend("host0", GIB)
    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(kind, match=says):
        device.allocate(1000, 1000)
    assert 0 == device.facts().allocated_bytes


def test_more_than_any_address_space() -> None:
    """A size no system can map is a typed error, not an OverflowError."""
    device = HostBackend("host", 1 << 70)
    for nbytes in (1 << 62, 1 << 66):
        with pytest.raises((CapacityError, DeviceError)):
            device.allocate(nbytes, nbytes)
    assert (0, []) == (device.facts().allocated_bytes, shared_mappings())


def test_allocating_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting `stop` while memory is faulted in ends the allocation after the piece under way; nothing stays."""
    stop = threading.Event()
    pieces: list[int] = []

    def piece(address: int, length: int, advice: int) -> None:
        pieces.append(length)
        stop.set()

    device = HostBackend("host", GIB, threads=1)
    monkeypatch.setattr(libc, "advise", piece)
    with pytest.raises(CancelledLoadError):
        device.allocate(512 * MIB, 512 * MIB, stop)
    assert ([shared.PIECE_BYTES], 0, []) == (pieces, device.facts().allocated_bytes, shared_mappings())


def test_a_mapped_file_is_a_buffer_that_cannot_be_written(mapped: MappedRange) -> None:
    """A mapped range counts against the capacity, reads as the file, has no view, and goes with free."""
    device = HostBackend("host", TENSOR_BYTES)
    buffer = device.import_host(mapped, TENSOR_BYTES)
    assert buffer is not None
    assert (0, TENSOR_BYTES, None) == (device.facts().free_bytes, buffer.nbytes, buffer.view(0, 8))
    expected, found = bytearray(100), bytearray(100)
    mapped.read_into(50, memoryview(expected))
    buffer.read_into(50, memoryview(found))
    assert expected == found
    with pytest.raises(DeviceError, match="cannot be written"):
        buffer.write(0, memoryview(b"x"))
    assert (TENSOR_BYTES, 0) == (buffer.free(), buffer.free())
    assert (0, []) == (device.facts().allocated_bytes, shared_mappings())


def test_a_mapping_that_does_not_fit_stays_the_callers(mapped: MappedRange) -> None:
    """Mapped bytes over the capacity are refused; the mapping is still the caller's to close."""
    device = HostBackend("host", TENSOR_BYTES - 1)
    with pytest.raises(CapacityError):
        device.import_host(mapped, TENSOR_BYTES)
    assert (0, True) == (device.facts().allocated_bytes, mapped.address != 0)
    mapped.close()


def test_a_mapped_file_that_was_cut_is_an_error_not_a_signal(mapped: MappedRange, tmp_path: Path) -> None:
    """Reading a mapping whose file was truncated raises FileError."""
    buffer = HostBackend("host", GIB).import_host(mapped, TENSOR_BYTES)
    assert buffer is not None
    os.truncate(tmp_path / "m.gguf", 0)
    with pytest.raises(FileError):
        buffer.read_into(0, memoryview(bytearray(8)))
    buffer.free()


def test_locking_says_why_it_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    """lock answers None when memory is locked, else the errno's name, and unlocks what it had."""
    buffer = HostBackend("host", GIB).allocate(100 * MIB, 100 * MIB)
    calls: list[tuple[str, int]] = []

    def lock(address: int, length: int) -> None:
        calls.append(("lock", length))
        if len(calls) == 2:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(libc, "lock", lock)
    monkeypatch.setattr(libc, "unlock", lambda address, length: calls.append(("unlock", length)))
    assert "ENOMEM" == buffer.lock()
    assert [("lock", 64 * MIB), ("lock", 36 * MIB), ("unlock", 64 * MIB)] == calls
    assert None is buffer.lock()
    stop = threading.Event()
    stop.set()
    assert "ECANCELED" == buffer.lock(stop)
    buffer.free()


def test_locked_memory_is_unlocked_by_free() -> None:
    """What was locked is no longer after free."""

    def locked() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmLck"))

    before = locked()
    buffer = HostBackend("host", GIB).allocate(MIB, MIB)
    if buffer.lock() is None:
        assert MIB == locked() - before
    buffer.free()
    assert before == locked()


def test_reading_while_it_is_freed() -> None:
    """A free waits for reads under way; later ones are refused; memory is never touched after it is gone."""
    device = HostBackend("host", GIB)
    for _ in range(20):
        buffer = device.allocate(MIB, MIB)
        refused: list[DeviceError] = []

        def read(buffer: object = buffer, refused: list[DeviceError] = refused) -> None:
            target = memoryview(bytearray(MIB))
            try:
                while True:
                    buffer.read_into(0, target)  # type: ignore[attr-defined]
            except DeviceError as error:
                refused.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert MIB == buffer.free()
        for thread in threads:
            thread.join()
        assert 3 == len(refused)
    assert 0 == device.facts().allocated_bytes
