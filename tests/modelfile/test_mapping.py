import ctypes
import errno
import os
import threading
from pathlib import Path

import pytest

from app.errors import FileError
from app.modelfile import libc
from app.modelfile.mapping import MappedRange
from app.modelfile.reader import read_model_file
from app.modelfile.source import open_source
from app.modelfile.types import ModelFile
from app.units import MIB
from tests.builders import F32, build, t0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model with a tensor of 40 MiB: more than two pieces."""
    return build(tmp_path / "m.gguf", {"general.architecture": "x"}, [("big", F32, (10 << 20,)), ("small", F32, (7,))])


@pytest.fixture
def model(path: Path) -> ModelFile:
    """The same, read."""
    return read_model_file(path)


def mapped(model: ModelFile, index: int = 0) -> MappedRange:
    """The range of one tensor; its source is closed already."""
    tensor = model.tensors[index]
    with open_source(model.shards[0]) as source:
        return source.map_range(tensor.offset, tensor.nbytes)


def mappings() -> int:
    """How many mappings this process has."""
    return Path("/proc/self/maps").read_text().count("\n")


def test_a_mapping_is_the_files_bytes(path: Path, model: ModelFile) -> None:
    """The address shows the tensor's bytes and outlives the source; reading gives the same without touching it."""
    for index, tensor in enumerate(model.tensors):
        expected = path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
        area = mapped(model, index)
        assert area.nbytes == tensor.nbytes
        assert ctypes.string_at(area.address, area.nbytes) == expected
        target = bytearray(12)
        area.read_into(16, memoryview(target))
        assert bytes(target) == expected[16:28]
        area.close()


def test_closing_gives_everything_back(model: ModelFile) -> None:
    """Closing, once or twice, leaves neither mapping nor descriptor."""
    mapped(model).close()
    before = (mappings(), os.listdir("/proc/self/fd"))
    for _ in range(3):
        area = mapped(model)
        area.close()
        area.close()
        assert area.address == 0
    assert before == (mappings(), os.listdir("/proc/self/fd"))


def test_populating_makes_pages_resident(model: ModelFile) -> None:
    """After populating, the kernel counts the range as resident; progress adds up to its bytes."""
    area = mapped(model)
    pieces: list[int] = []
    area.populate(threading.Event(), pieces.append)
    assert sum(pieces) == area.nbytes
    assert len(pieces) == 3
    assert resident_bytes(area) >= area.nbytes
    area.close()


def resident_bytes(area: MappedRange) -> int:
    """What the kernel says of the mapping that holds the range."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    for index, line in enumerate(lines):
        span = line.split()[0].split("-")
        if len(span) == 2 and int(span[0], 16) <= area.address < int(span[1], 16):
            rss = next(entry for entry in lines[index:] if entry.startswith("Rss:"))
            return int(rss.split()[1]) * 1024
    raise AssertionError("not mapped")


def test_populating_stops_when_told(model: ModelFile) -> None:
    """A set stop flag ends populating before the next piece."""
    area, stop = mapped(model), threading.Event()
    pieces: list[int] = []

    def progress(count: int) -> None:
        pieces.append(count)
        stop.set()

    area.populate(stop, progress)
    assert len(pieces) == 1
    area.close()


def test_populating_on_an_older_kernel(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel does not know how to populate, it is told to read ahead, silently."""
    advices: list[int] = []

    def old_kernel(address: int, length: int, advice: int) -> None:
        advices.append(advice)
        if advice == libc.MADV_POPULATE_READ:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(libc, "advise", old_kernel)
    area = mapped(model)
    pieces: list[int] = []
    area.populate(threading.Event(), pieces.append)
    assert advices == [libc.MADV_POPULATE_READ] + [libc.MADV_WILLNEED] * 3
    assert sum(pieces) == area.nbytes
    area.close()


def test_a_file_cut_under_the_mapping(path: Path, model: ModelFile) -> None:
    """A file that is cut short while mapped gives a typed error, from reading and from populating, and no signal."""
    area = mapped(model)
    os.truncate(path, 2 * MIB)
    with pytest.raises(FileError) as caught:
        area.read_into(20 * MIB, memoryview(bytearray(100)))
    assert caught.value.code == "file_changed"
    with pytest.raises(FileError) as caught:
        area.populate(threading.Event())
    assert caught.value.code == "file_changed"
    area.close()


def test_an_empty_range_maps_nothing(model: ModelFile) -> None:
    """A range of no bytes needs no mapping: populating, locking, reading and closing it do nothing."""
    with open_source(model.shards[0]) as source:
        before = mappings()
        area = source.map_range(source.size, 0)
        assert (area.address, area.nbytes, mappings()) == (0, 0, before)
        area.populate(threading.Event())
        assert area.lock() is None
        area.read_into(0, memoryview(b""))
        area.close()


def test_locking(tmp_path: Path) -> None:
    """A small range can be locked, and the kernel counts it; unmapping unlocks."""
    model = read_model_file(t0(tmp_path / "m.gguf"))
    area = mapped(model, 0)
    before = locked_kib()
    reason = area.lock()
    if reason is not None:
        area.close()
        pytest.skip(f"this machine refuses to lock memory: {reason}")
    assert locked_kib() - before >= area.nbytes // 1024
    area.close()
    assert locked_kib() == before


def locked_kib() -> int:
    """VmLck of this process."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmLck")).split()[1])


def test_a_refused_lock_is_a_reason(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal in the middle answers the errno's name and leaves nothing locked."""
    unlocked: list[int] = []
    calls = 0

    def refusing(address: int, length: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(libc, "lock", refusing)
    monkeypatch.setattr(libc, "unlock", lambda address, length: unlocked.append(length))
    area = mapped(model)
    assert area.lock() == "ENOMEM"
    assert unlocked == [32 * MIB]
    stop = threading.Event()
    stop.set()
    assert area.lock(stop) == "ECANCELED"
    area.close()


def test_a_kernel_that_refuses_to_map(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that can't map gives a typed error that says so, and no descriptor stays open."""

    def refusing(fd: int, offset: int, length: int) -> int:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(libc, "map_file", refusing)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileError) as caught:
        mapped(model)
    facts = caught.value.facts
    assert (caught.value.code, facts["operation"], facts["found"]) == ("read_failed", "mmap", "ENODEV")
    assert before == os.listdir("/proc/self/fd")
