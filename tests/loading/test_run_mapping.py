"""What a load does about mapping and reading the file, where a device or the system does not go along."""

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.errors import (
    DeviceError,
    FileError,
    PlanError,
)
from app.loading.negotiation import FallbackReason, LoadMode
from app.loading.run import prepare
from app.loading.signals import FileRead, Remapped
from app.modelfile.source import FileSource, MappedRange
from app.planner.plan import SplitMode
from tests.builders import t0, tp
from tests.loading.running import T0_2, Log, assert_whole, load
from tests.worlds import MIB, allocated, request, world


@pytest.fixture
def root(tmp_path: Path) -> Path:
    t0(tmp_path / "m.gguf")
    return tmp_path


def test_auto_goes_on_by_reading_where_a_device_declines_the_mapping(root: Path) -> None:
    """The device said it could, and then would not: the load ends well, with the fallback counted and said."""
    place, log = world(root, simulated=["a:4MiB,refuse_import,keep_bytes"], hosts=0), Log()
    loaded = load(place, request(), log)

    assert_whole(loaded)
    assert loaded.prepared.mapping.resolved is LoadMode.NONE
    assert loaded.prepared.mapping.fallbacks[-1].reason is FallbackReason.MAP_REFUSED
    assert any(isinstance(signal, Remapped) for signal in log.signals)
    loaded.free()
    assert allocated(place) == {}


def test_a_kernel_that_refuses_the_mapping_is_worked_around(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C42: ENODEV from mmap falls back to reading unless the mapping was asked for."""

    def refuse(self: FileSource, offset: int, length: int) -> MappedRange:
        raise FileError("mapping was refused", code="read_failed", operation="mmap", found="ENODEV")

    monkeypatch.setattr(FileSource, "map_range", refuse)
    place = world(root)
    loaded = load(place, request())
    assert_whole(loaded)
    assert loaded.prepared.mapping.resolved is LoadMode.NONE
    loaded.free()

    with pytest.raises(PlanError) as caught:
        load(place, request(load_mode=LoadMode.MMAP))
    assert caught.value.code == "unsupported_load_mode"
    assert allocated(place) == {}


def test_a_device_that_fails_to_import_fails_the_load(root: Path) -> None:
    """Declining is a value, failing is an error; the mapping is closed either way."""
    place = world(root, simulated=["a:4MiB,fail_import"], hosts=0)
    with open("/proc/self/maps") as maps:
        before = maps.read().count("m.gguf")
    with pytest.raises(DeviceError):
        load(place, request())

    with open("/proc/self/maps") as maps:
        assert maps.read().count("m.gguf") == before
    assert allocated(place) == {}


def test_c46_a_lock_that_the_system_refuses_is_a_warning(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is ready without the lock, and says so."""
    monkeypatch.setattr(MappedRange, "lock", lambda self, stop=None: "ENOMEM")
    loaded = load(world(root), request(load_mode=LoadMode.MMAP_MLOCK))

    assert loaded.prepared.mapping.resolved is LoadMode.MMAP
    assert loaded.prepared.mapping.fallbacks[-1].reason is FallbackReason.LOCK_REFUSED
    assert any("not locked" in warning for warning in loaded.prepared.warnings)
    loaded.free()


def test_c44_direct_io_that_cannot_read_falls_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened, then EINVAL at the first read: buffered from there on, same bytes, one warning."""
    honest = FileSource.__init__
    refused = threading.Event()

    def once(fd: int, views: Sequence[memoryview], offset: int) -> int:
        if not refused.is_set():
            refused.set()
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.preadv(fd, views, offset)

    def impatient(self: FileSource, fd: int, path: Path, identity: Any, preadv: Any = None) -> None:
        honest(self, fd, path, identity, once)

    monkeypatch.setattr(FileSource, "__init__", impatient)
    loaded = load(world(root), request(load_mode=LoadMode.DIRECT_IO))

    assert_whole(loaded)
    assert loaded.prepared.mapping.resolved is LoadMode.NONE
    assert loaded.prepared.mapping.fallbacks[-1].reason is FallbackReason.DIRECT_IO_REFUSED
    loaded.free()


def test_a_mapping_on_a_network_file_system_is_not_taken_by_itself(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C42: auto reads from NFS, and says why; forced mmap still maps."""
    monkeypatch.setattr("app.loading.run.filesystem_kind", lambda place: "nfs")
    place = world(root)

    assert prepare(request(), place).mapping.resolved is LoadMode.NONE
    assert prepare(request(load_mode=LoadMode.MMAP), place).mapping.resolved is LoadMode.MMAP


def test_every_byte_is_read_once(root: Path) -> None:
    """Reading without a mapping asks the file for its tensor bytes once, gaps aside, however many devices want them."""
    log = Log()
    load(world(root), request(split_mode=SplitMode.TENSOR, load_mode=LoadMode.NONE), log).free()
    nbytes = sum(signal.nbytes for signal in log.signals if isinstance(signal, FileRead))

    assert T0_2 <= nbytes <= T0_2 + 4096


def test_c42_a_mapped_model_is_read_in_once(root: Path) -> None:
    """Two devices' ranges of one file don't take in each other's layers: what is made present is about one file."""
    path = tp(root / "large.gguf", 4, 4096, 4)
    log = Log()
    loaded = load(world(root), request(model="large.gguf", load_mode=LoadMode.MMAP), log)
    nbytes = sum(signal.nbytes for signal in log.signals if isinstance(signal, FileRead))

    assert_whole(loaded)
    assert 0 <= nbytes - loaded.prepared.model.n_bytes <= 2 * MIB
    assert path.stat().st_size > 10 * MIB
    loaded.free()
