import os
from pathlib import Path

import numpy as np
import pytest

from app.errors import FileError
from app.modelfile import mapping
from app.modelfile.gathering import gather
from app.modelfile.mapping import MappedRange
from app.modelfile.opening import identity_of

WIDTH, ROWS, OFFSET = 300, 5000, 77


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, OFFSET + WIDTH * ROWS, np.uint8).tobytes())
    return path


def mapped(path: Path) -> MappedRange:
    fd = os.open(path, os.O_RDONLY)
    try:
        return MappedRange(fd, path, identity_of(os.fstat(fd)), 20, WIDTH * ROWS + OFFSET - 20)
    finally:
        os.close(fd)


@pytest.mark.parametrize("by_kernel", [True, False])
def test_rows_of_a_mapped_file(file: Path, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come in the order asked for, more of them than one call takes; also where the kernel cannot gather them."""
    if not by_kernel:
        monkeypatch.setattr(mapping, "gather", lambda *_: False)
    rows = np.random.default_rng(1).integers(0, ROWS, 2500)
    target = np.empty((len(rows), WIDTH), np.uint8)
    area = mapped(file)
    area.read_rows(OFFSET - 20, rows, target)
    area.close()
    table = np.frombuffer(file.read_bytes()[OFFSET:], np.uint8).reshape(-1, WIDTH)
    assert np.array_equal(table[rows], target)


@pytest.mark.parametrize("left", [0, 4096, OFFSET + WIDTH * ROWS - 1])
def test_a_file_cut_short_is_an_error_and_no_signal(file: Path, left: int) -> None:
    """Rows that are gone from the file are a FileError, whether their pages are gone too or read as zeros now."""
    area = mapped(file)
    os.truncate(file, left)
    with pytest.raises(FileError) as caught:
        area.read_rows(OFFSET - 20, np.array([0, ROWS - 1]), np.empty((2, WIDTH), np.uint8))
    assert "file_changed" == caught.value.code
    area.close()


def test_an_address_of_nothing_is_told() -> None:
    """The kernel refuses an address where nothing lies, and no signal comes of it."""
    assert not gather(np.array([4096], np.uint64), np.empty((1, 10), np.uint8))
    assert gather(np.empty(0, np.uint64), np.empty((0, 10), np.uint8))


def test_nothing_is_left_open(file: Path) -> None:
    """Gathering leaves no descriptor behind, whether it works or not."""
    area = mapped(file)
    before = len(os.listdir("/proc/self/fd"))
    target = np.empty((1, WIDTH), np.uint8)
    area.read_rows(0, np.array([0]), target)
    gather(np.array([4096], np.uint64), target)
    assert before == len(os.listdir("/proc/self/fd"))
    area.close()
