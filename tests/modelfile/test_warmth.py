"""How much of a file is in memory, as the kernel tells it."""

import os
from pathlib import Path

import pytest

from app.modelfile import libc
from app.modelfile.filesystem import filesystem_kind
from app.modelfile.opening import open_regular
from app.modelfile.warmth import Warmth, joined, warmth

MIB = 1 << 20


def cold(path: Path, size: int) -> Path:
    """A file of `size` bytes that is on the disk and nowhere else; skips where the file system keeps it anyway."""
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
        file.write(os.urandom(size % MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with open_regular(path) as opened:
        if warmth(opened).resident != 0:
            pytest.skip(f"a {filesystem_kind(path)} file system does not let go of its pages")
    return path


def fraction(path: Path, budget: int = 64 * MIB) -> float | None:
    """The warmth of the file at a path."""
    with open_regular(path) as opened:
        return warmth(opened, budget).fraction


def read(path: Path, start: int, stop: int) -> None:
    """Bring part of a file into memory, and nothing beside it."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), stop - start, start)


def test_what_was_read_is_warm(tmp_path: Path) -> None:
    """A cold file has nothing in memory, and asking changes nothing; one half read is half warm, then all of it."""
    path = cold(tmp_path / "f", 4 * MIB)
    assert [0.0, 0.0] == [fraction(path), fraction(path)]
    read(path, 0, 2 * MIB)
    assert 0.5 == fraction(path)
    read(path, 2 * MIB, 4 * MIB)
    assert 1.0 == fraction(path)


def test_large_files_are_sampled_evenly(tmp_path: Path) -> None:
    """Of a file beyond the budget, windows all over it are looked at, and the part that is warm comes out about right.

    No more pages are looked at than the budget has.
    """
    path = cold(tmp_path / "f", 32 * MIB)
    read(path, 0, 16 * MIB)
    with open_regular(path) as opened:
        found = warmth(opened, 8 * MIB)
    assert found.sampled
    assert found.pages <= 8 * MIB // libc.PAGE
    assert 0.4 <= (found.fraction or 0) <= 0.6


@pytest.mark.parametrize("size", [1, libc.PAGE - 1, libc.PAGE + 1, MIB + 7])
def test_the_last_page_counts_whole(tmp_path: Path, size: int) -> None:
    """A file that was just written is warm to its last, partial page."""
    (tmp_path / "f").write_bytes(bytes(size))
    assert 1.0 == fraction(tmp_path / "f")


def test_an_empty_file_has_no_warmth(tmp_path: Path) -> None:
    """Nothing to be warm: no number, and no division."""
    (tmp_path / "f").touch()
    assert fraction(tmp_path / "f") is None


def test_files_count_by_their_sizes() -> None:
    """Several files are as warm as all their bytes together; one that nobody may know of makes all unknown."""
    page = libc.PAGE
    parts = [(8 * page, Warmth(pages=8, resident=8)), (24 * page, Warmth(pages=2, resident=0, sampled=True))]
    assert (0.25, True) == (joined(parts).fraction, joined(parts).sampled)
    assert joined([*parts, (page, Warmth(resident=None))]).fraction is None
    assert joined([(0, Warmth())]).fraction is None


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, and only root can become one")
def test_where_the_kernel_tells_strangers_nothing_nothing_is_said(tmp_path: Path) -> None:
    """To a user who neither owns the file nor may write it the kernel calls every page warm: that is no answer."""
    path = tmp_path / "f"
    path.write_bytes(bytes(MIB))
    path.chmod(0o644)
    opened = open_regular(path)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os._exit(0 if warmth(opened).fraction is None else 1)
        finally:
            os._exit(2)
    with opened:
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert 1.0 == warmth(opened).fraction


def test_the_mapping_goes_again(tmp_path: Path) -> None:
    """Asking leaves neither a mapping nor a descriptor."""
    (tmp_path / "f").write_bytes(bytes(MIB))
    for _ in range(20):
        fraction(tmp_path / "f")
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
