"""The walk for models: what it finds, where it does not go, and that it always ends."""

import os
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from app.modelfile.finding import Findings, WalkLimits, find_models

LIMITS = WalkLimits(seconds=30)


def put(*paths: Path) -> None:
    """Empty files, with their folders."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(findings: Findings) -> list[tuple[str, ...]]:
    """The names that were found."""
    return [found.names for found in findings.models]


def test_models_are_found_by_their_ending_at_any_depth(tmp_path: Path) -> None:
    """Regular files that end in `.gguf` are found, sorted by path; others and folders of that name are not."""
    put(tmp_path / "b.gguf", tmp_path / "a" / "z.gguf", tmp_path / "a" / "z.gguf.part", tmp_path / ".x" / "h.gguf")
    put(tmp_path / "folder.gguf" / "inside.gguf", tmp_path / "gguf")
    os.mkfifo(tmp_path / "fifo.gguf")
    found = find_models([tmp_path], LIMITS)
    assert [(".x/h.gguf",), ("a/z.gguf",), ("b.gguf",), ("folder.gguf/inside.gguf",)] == names(found)
    assert ((), 0) == (found.limits_met, found.unreadable)


def test_the_files_of_a_set_are_one_model(tmp_path: Path) -> None:
    """Names of one set are one entry, in order, whichever of them are there; other folders and counts are others."""
    sets = ("m-00002-of-00003.gguf", "m-00001-of-00003.gguf", "m-00001-of-00002.gguf", "n/m-00003-of-00003.gguf")
    put(*(tmp_path / name for name in sets))
    assert [
        ("m-00001-of-00002.gguf",),
        ("m-00001-of-00003.gguf", "m-00002-of-00003.gguf"),
        ("n/m-00003-of-00003.gguf",),
    ] == names(find_models([tmp_path], LIMITS))


def test_links_are_followed_inside_the_roots_and_nowhere_else(tmp_path: Path) -> None:
    """A link to a file or folder below a root counts; one that leaves the roots, or leads nowhere, does not."""
    root, outside = tmp_path / "root", tmp_path / "root-sibling"
    put(root / "blobs" / "abc", outside / "o.gguf")
    (root / "in.gguf").symlink_to("blobs/abc")
    (root / "out.gguf").symlink_to(outside / "o.gguf")
    (root / "nowhere.gguf").symlink_to("no-such-file")
    (root / "folder").symlink_to(outside)
    (root / "dots").symlink_to("..")
    assert [("in.gguf",)] == names(find_models([root], LIMITS))


def test_a_folder_is_entered_once_and_by_its_own_path(tmp_path: Path) -> None:
    """Links to folders, cycles among them, and roots inside roots repeat nothing."""
    put(tmp_path / "z" / "m.gguf")
    (tmp_path / "a").symlink_to("z")
    (tmp_path / "z" / "loop").symlink_to("..")
    found = find_models([tmp_path, tmp_path / "z"], LIMITS)
    assert [(tmp_path, ("z/m.gguf",))] == [(one.root, one.names) for one in found.models]


@pytest.mark.parametrize(("field", "most"), [("depth", 2), ("entries", 300), ("models", 5)])
def test_a_walk_that_is_cut_short_says_why(tmp_path: Path, field: str, most: int) -> None:
    """Depth, entries and models have bounds; what lies within them is found, and the bound is named."""
    put(tmp_path / "top.gguf", *(tmp_path / "a" / "b" / "c" / f"{number}.gguf" for number in range(600)))
    found = find_models([tmp_path], replace(LIMITS, **{field: most}))
    assert (field,) == found.limits_met
    assert ("top.gguf",) in names(found)
    assert len(found.models) < 601


def test_a_walk_ends_by_the_clock(tmp_path: Path) -> None:
    """A tree that takes too long is left where the time is up, in the middle of a folder too."""
    put(*(tmp_path / str(number // 1000) / f"{number}.gguf" for number in range(3000)))
    ticks = count()
    found = find_models([tmp_path], replace(LIMITS, seconds=5), clock=lambda: float(next(ticks)))
    assert ("seconds",) == found.limits_met
    assert 0 < len(found.models) < 3000


def test_nothing_stays_open(tmp_path: Path) -> None:
    """Neither a walk that ends well nor one that is cut short, nor unreadable folders, keep a descriptor."""
    put(*(tmp_path / str(number % 7) / f"{number}.gguf" for number in range(900)))
    before = len(os.listdir("/proc/self/fd"))
    for limits in (LIMITS, replace(LIMITS, entries=10), replace(LIMITS, models=3), replace(LIMITS, seconds=0)):
        find_models([tmp_path, tmp_path / "missing", Path("/dev/null")], limits)
    assert before == len(os.listdir("/proc/self/fd"))


def test_a_root_that_is_missing_is_counted(tmp_path: Path) -> None:
    """A root that cannot be read does not hide the others."""
    put(tmp_path / "m.gguf")
    found = find_models([tmp_path / "missing", tmp_path], LIMITS)
    assert (1, [("m.gguf",)]) == (found.unreadable, names(found))


def test_a_huge_tree_is_left_within_its_time(tmp_path: Path) -> None:
    """Ten thousand files take less than a second, with the limits that a daemon has."""
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        for other in range(500):
            os.close(os.open(tmp_path / str(number) / f"{other}.gguf", os.O_CREAT | os.O_WRONLY))
    started = time.monotonic()
    found = find_models([tmp_path], WalkLimits())
    assert time.monotonic() - started < 1
    assert len(found.models) == 10_000 or found.limits_met == ("seconds",)
