import errno
import fcntl
import hashlib
import os
import random
import threading
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.errors import FileError
from app.modelfile.opening import open_regular
from app.modelfile.reader import read_model_file
from app.modelfile.source import FileSource, filesystem_kind, is_network, open_source
from app.modelfile.types import ModelFile, Shard
from app.units import KIB, MIB
from tests.builders import t0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """T0(4) in a file."""
    return t0(tmp_path / "m.gguf", 4)


@pytest.fixture
def model(path: Path) -> ModelFile:
    """The same, read."""
    return read_model_file(path)


def read(source: FileSource, offset: int, length: int) -> bytes:
    """Bytes of the source as it reads them."""
    target = bytearray(length)
    source.read_into(offset, memoryview(target))
    return bytes(target)


def test_reads_are_the_files_bytes(path: Path, model: ModelFile) -> None:
    """Any range, of any alignment, is the file's bytes."""
    content = path.read_bytes()
    with open_source(model.shards[0]) as source:
        assert source.size == len(content)
        assert source.io_mode == "buffered"
        for offset, length in ((0, len(content)), (1, 7), (4095, 4098), (len(content) - 1, 1), (5, 0)):
            assert read(source, offset, length) == content[offset : offset + length]


def test_targets_of_other_types_are_bytes(path: Path, model: ModelFile) -> None:
    """A target that is an array of numbers is filled like one of bytes."""
    target = array("f", bytes(400))
    with open_source(model.shards[0]) as source:
        source.read_into(10, memoryview(target))
    assert target.tobytes() == path.read_bytes()[10:410]


class Impatient:
    """A preadv that reads at most `most` bytes, and is interrupted every `period`th call."""

    def __init__(self, most: int, period: int) -> None:
        self.most, self.period, self.calls = most, period, 0

    def __call__(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self.calls += 1
        if self.calls % self.period == 0:
            raise InterruptedError(errno.EINTR, "interrupted")
        return os.preadv(fd, [buffers[0][: self.most]], offset)


@pytest.mark.parametrize("direct", [False, True])
def test_short_reads_and_interruptions_are_continued(path: Path, model: ModelFile, direct: bool) -> None:
    """Reads that return little and are interrupted often still give every byte."""
    content = path.read_bytes()
    impatient = Impatient(4093, 7)
    with open_source(model.shards[0], direct=direct, preadv=impatient) as source:
        whole = read(source, 0, len(content))
    assert hashlib.sha256(whole).digest() == hashlib.sha256(content).digest()
    assert impatient.calls > len(content) // 4093


def test_a_file_that_ends_too_early(path: Path, model: ModelFile) -> None:
    """No bytes before the end are truncated, or file_changed where the size says so; never a zero-filled tail."""
    with open_source(model.shards[0], preadv=lambda *_: 0) as source:
        with pytest.raises(FileError) as caught:
            read(source, 100, 10)
        assert (caught.value.code, caught.value.facts["offset"]) == ("truncated", 100)
    with open_source(model.shards[0]) as source:
        os.truncate(path, 5000)
        with pytest.raises(FileError) as caught:
            read(source, 4000, 2000)
        assert (caught.value.code, caught.value.facts["field"]) == ("file_changed", "size")


def test_a_disk_that_fails(model: ModelFile) -> None:
    """An input/output error is read_failed with the errno's name and the offset."""

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with open_source(model.shards[0], preadv=broken) as source, pytest.raises(FileError) as caught:
        read(source, 64, 10)
    assert (caught.value.code, caught.value.facts["found"], caught.value.facts["offset"]) == ("read_failed", "EIO", 64)


def test_a_closed_source_reads_nothing(model: ModelFile) -> None:
    """Closing twice is fine; reading afterwards is read_failed."""
    source = open_source(model.shards[0])
    source.close()
    source.close()
    with pytest.raises(FileError) as caught:
        read(source, 0, 1)
    assert caught.value.code == "read_failed"


def change_size(path: Path) -> None:
    """One byte more."""
    os.truncate(path, path.stat().st_size + 1)


def change_time(path: Path) -> None:
    """Another time of modification."""
    os.utime(path, ns=(0, 1))


def change_file(path: Path) -> None:
    """Another file of the same bytes."""
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize("change", [change_size, change_time, change_file, Path.unlink])
def test_only_the_validated_file_is_opened(path: Path, model: ModelFile, change: object) -> None:
    """A file that is not the one that was validated is file_changed, and nothing stays open."""
    assert callable(change)
    before = os.listdir("/proc/self/fd")
    change(path)
    with pytest.raises(FileError) as caught:
        open_source(model.shards[0])
    assert caught.value.code == "file_changed"
    assert before == os.listdir("/proc/self/fd")


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_direct_reads_give_the_same_bytes(tmp_path: Path, extra: int) -> None:
    """Direct I/O gives every byte of files that end just before, at and behind a block, to many threads at once."""
    path = tmp_path / "m.bin"
    content = random.Random(1).randbytes(9 * MIB + extra)
    path.write_bytes(content)
    source = open_source(shard_of(path), direct=True)
    rng = random.Random(2)
    ranges = [(start := rng.randrange(len(content)), rng.randrange(len(content) - start + 1)) for _ in range(40)]
    ranges += [(0, len(content)), (len(content) - 1, 1), (4096, 4096), (0, 1), (len(content), 0)]
    with source, ThreadPoolExecutor(4) as pool:
        for (start, length), found in zip(ranges, pool.map(lambda r: read(source, *r), ranges), strict=True):
            assert found == content[start : start + length]
        assert source.io_mode == "direct" or source.fallback_reason is not None


def shard_of(path: Path) -> Shard:
    """A shard that is any file."""
    with open_regular(path) as file:
        return Shard(path=file.real, identity=file.identity, data_start=0)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EFAULT, errno.EOPNOTSUPP])
@pytest.mark.parametrize("failing_call", [1, 3])
def test_direct_reads_fall_back(tmp_path: Path, number: int, failing_call: int) -> None:
    """A direct read that the file system refuses, first or later, goes on buffered from the same offset, once noted."""
    path = tmp_path / "m.bin"
    content = random.Random(1).randbytes(20 * MIB)
    path.write_bytes(content)
    calls = 0

    def refusing(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError(number, os.strerror(number))
        return os.preadv(fd, buffers, offset)

    with open_source(shard_of(path), direct=True, preadv=refusing) as source:
        if source.io_mode == "buffered":
            pytest.skip("this file system refuses direct I/O at opening")
        assert read(source, 3, len(content) - 3) == content[3:]
        assert (source.io_mode, source.fallback_reason) == ("buffered", errno.errorcode[number])


def test_other_threads_may_read_while_one_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees the source buffered can read at any offset: the descriptor is no direct one any more by then."""
    path = tmp_path / "m.bin"
    path.write_bytes(content := random.Random(1).randbytes(MIB))
    plain, seen = fcntl.fcntl, list[str]()

    def watched(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and not flags & os.O_DIRECT:
            seen.append(source.io_mode)
        return plain(fd, command, flags)

    def refusing(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if plain(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.preadv(fd, buffers, offset)

    with open_source(shard_of(path), direct=True, preadv=refusing) as source:
        if source.io_mode == "buffered":
            pytest.skip("this file system refuses direct I/O at opening")
        monkeypatch.setattr(fcntl, "fcntl", watched)
        assert content[3:] == read(source, 3, len(content) - 3)
        assert (["direct"], "buffered") == (seen, source.io_mode)


def test_direct_io_that_cannot_be_switched_on(path: Path, model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses direct I/O at opening is read buffered, with the reason kept."""
    plain = fcntl.fcntl

    def refusing(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return plain(fd, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    with open_source(model.shards[0], direct=True) as source:
        assert (source.io_mode, source.fallback_reason) == ("buffered", "EINVAL")
        assert read(source, 0, 100) == path.read_bytes()[:100]


def test_direct_reads_on_a_memory_file_system() -> None:
    """On tmpfs, direct I/O either works or falls back; the bytes are the same."""
    folder = Path("/dev/shm")
    if filesystem_kind(folder) != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    path = folder / f"ggufd-test-{os.getpid()}"
    try:
        content = random.Random(3).randbytes(100 * KIB + 3)
        path.write_bytes(content)
        with open_source(shard_of(path), direct=True) as source:
            assert read(source, 1, len(content) - 1) == content[1:]
    finally:
        path.unlink(missing_ok=True)


def test_kinds_of_file_systems(tmp_path: Path) -> None:
    """The kind is the same for a path, a descriptor and a source; what can't be asked is `other`."""
    assert filesystem_kind(Path("/proc")) == "other"
    assert filesystem_kind(tmp_path / "missing") == "other"
    assert filesystem_kind(-1) == "other"
    path = t0(tmp_path / "m.gguf")
    kind = filesystem_kind(tmp_path)
    with open_source(read_model_file(path).shards[0]) as source, path.open("rb") as file:
        assert source.filesystem() == filesystem_kind(file.fileno()) == kind
    assert not is_network(kind)


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs", True), ("cifs", True), ("fuse", True), ("lustre", True), ("9p", True), ("ext", False), ("tmpfs", False)],
)
def test_network_file_systems(kind: str, network: bool) -> None:
    """Network mounts are known as such, and FUSE counts as one."""
    assert is_network(kind) is network


def test_many_threads_read_at_once(path: Path, model: ModelFile) -> None:
    """One source serves many threads; each gets its own bytes."""
    content = path.read_bytes()
    failures: list[int] = []
    with open_source(model.shards[0]) as source:

        def work(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(50):
                start = rng.randrange(len(content))
                length = rng.randrange(len(content) - start)
                if read(source, start, length) != content[start : start + length]:
                    failures.append(start)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
