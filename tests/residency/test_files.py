"""Files under the roots: listed, described, kept by identity, and never longer than a moment."""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from app.errors import AccessError, FileError, NotFoundError
from app.modelfile.finding import WalkLimits
from app.residency import files as module
from app.residency.description import Description, describe
from app.residency.files import FileEntry, ModelFiles
from tests.builders import t0, t0_split
from tests.worlds import world


@pytest.fixture
def shelf(tmp_path: Path) -> ModelFiles:
    """The files under the test's folder."""
    return ModelFiles(world(tmp_path))


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file whose header is read, as it is."""
    found: list[Path] = []

    def noting(path: Path, *arguments: Any, **more: Any) -> Description:
        found.append(path)
        return describe(path, *arguments, **more)

    monkeypatch.setattr(module, "describe", noting)
    return found


def entries(shelf: ModelFiles, offset: int = 0, limit: int = 1000) -> dict[str, FileEntry]:
    """A page by path."""
    return {entry.path: entry for entry in shelf.page(offset, limit).entries}


def test_a_model_is_listed_with_its_facts(shelf: ModelFiles, tmp_path: Path) -> None:
    """Path, size, architecture, type, counts, types of tensors, and that it can be loaded."""
    path = t0(tmp_path / "a.gguf", types={"output.weight": "q8_0"}, shapes={"output.weight": (64, 32)})
    facts = entries(shelf)["a.gguf"].facts
    told = {name: facts[name] for name in ("files", "size_bytes", "architecture", "type", "n_tensors", "loadable")}
    assert {
        "files": 1,
        "size_bytes": path.stat().st_size,
        "architecture": "llama",
        "type": "?B",
        "n_tensors": 21,
        "loadable": True,
    } == told
    assert (None, 306_560, 78_144) == (facts["problem"], facts["n_bytes"], facts["n_params"])
    assert ("f32", 31.384) == (facts["quantisation"]["main"], facts["quantisation"]["bits_per_weight"])
    assert ["f32", "q8_0"] == [one["type"] for one in facts["quantisation"]["types"]]
    assert 1.0 == facts["page_cache"]["resident_fraction"]


def test_what_cannot_be_loaded_says_why(shelf: ModelFiles, tmp_path: Path) -> None:
    """Broken files, files that are no models and incomplete sets stand in the list with code and sentence."""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    t0(tmp_path / "clip.gguf", set_keys={"general.architecture": "clip"})
    t0_split(tmp_path, (13, 13, 13))[1].unlink()
    found = {path: (entry.facts["loadable"], entry.facts["problem"]["code"]) for path, entry in entries(shelf).items()}
    assert {
        "broken.gguf": (False, "truncated"),
        "clip.gguf": (False, "not_a_model"),
        "m-00001-of-00003.gguf": (False, "split_missing"),
    } == found


def test_a_set_is_one_entry(shelf: ModelFiles, tmp_path: Path) -> None:
    """A split model counts once, under its first file, with the bytes of all of them."""
    paths = t0_split(tmp_path, (13, 13, 13))
    ((path, entry),) = entries(shelf).items()
    assert (paths[0].name, 3, True) == (path, entry.facts["files"], entry.facts["loadable"])
    assert sum(one.stat().st_size for one in paths) == entry.facts["size_bytes"]
    assert (608_512, 39) == (entry.facts["n_bytes"], entry.facts["n_tensors"])


def test_files_that_are_only_named_like_a_set_are_told(shelf: ModelFiles, tmp_path: Path) -> None:
    """Names alone make no set: where the metadata says otherwise, a warning names the others."""
    for number in (1, 2):
        t0(tmp_path / f"m-0000{number}-of-00002.gguf")
    (entry,) = entries(shelf).values()
    assert "m-00002-of-00002.gguf" in entry.facts["warnings"][0]


def test_a_header_is_read_once(shelf: ModelFiles, tmp_path: Path, described: list[Path]) -> None:
    """What is known of a file is used until the file is another one: changed, replaced, or another of its set."""
    path, paths = t0(tmp_path / "a.gguf"), t0_split(tmp_path, (13, 13, 13))
    for _ in range(3):
        entries(shelf)
    assert 2 == len(described)
    t0(path, set_keys={"general.architecture": "clip"})
    assert not entries(shelf)["a.gguf"].facts["loadable"]
    paths[2].unlink()
    assert "split_missing" == entries(shelf)[paths[0].name].facts["problem"]["code"]
    assert 4 == len(described)
    t0_split(tmp_path, (13, 13, 13))
    assert entries(shelf)[paths[0].name].facts["loadable"]


def test_what_is_kept_is_bounded(
    shelf: ModelFiles, tmp_path: Path, described: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more files than are kept, the ones that were asked for last are kept."""
    monkeypatch.setattr(module, "_KEPT", 3)
    for number in range(5):
        t0(tmp_path / f"{number}.gguf")
    entries(shelf)
    entries(shelf, 2, 3)
    assert 5 == len(described)
    entries(shelf, 0, 2)
    assert 7 == len(described)


def test_a_page_that_takes_too_long_ends_early(tmp_path: Path) -> None:
    """However slow the files are, a page looks at one at least, and says where to go on."""
    for number in range(4):
        t0(tmp_path / f"{number}.gguf")
    ticks = count()
    slow = ModelFiles(world(tmp_path), WalkLimits(seconds=1e9), clock=lambda: float(next(ticks)))
    seen: list[str] = []
    offset = 0
    while offset < 4:
        page = slow.page(offset, 100)
        assert (4, True) == (page.count, offset < page.stop)
        seen += [entry.path for entry in page.entries]
        offset = page.stop
    assert [f"{number}.gguf" for number in range(4)] == seen


def test_pages_go_through_all_files(shelf: ModelFiles, tmp_path: Path) -> None:
    """Every file is on one page; a page beyond the last is empty."""
    for number in range(7):
        t0(tmp_path / f"{number}.gguf")
    found = [path for offset in (0, 3, 6) for path in entries(shelf, offset, 3)]
    assert [f"{number}.gguf" for number in range(7)] == found
    assert ([], 7) == (shelf.page(100, 3).entries, shelf.page(100, 3).count)


def test_a_path_is_one_that_a_load_would_use(tmp_path: Path) -> None:
    """Below its root where that finds it, absolute where an earlier root has the same name; a load then finds it."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        t0(tmp_path / folder / "same.gguf")
    t0(tmp_path / "two" / "own.gguf")
    place = world(tmp_path / "one")
    roots = (tmp_path / "one", tmp_path / "two")
    shelf = ModelFiles(type(place)(catalog=place.catalog, backends=place.backends, roots=roots))
    found = entries(shelf)
    assert ["same.gguf", "own.gguf", str(tmp_path / "two" / "same.gguf")] == [*found]
    for path in found:
        description, _ = shelf.describe(path)
        assert description.problem is None


def test_a_name_that_json_cannot_carry_is_shown_and_told(shelf: ModelFiles, tmp_path: Path) -> None:
    """A name of arbitrary bytes is escaped, and the entry says that no request can name the file."""
    t0(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf")))
    ((path, entry),) = entries(shelf).items()
    assert (r"\xff.gguf", False, False) == (path, entry.nameable, entry.facts["loadable"])
    assert "bad_request" == entry.facts["problem"]["code"]


def test_an_error_nobody_foresaw_hides_no_other_file(
    shelf: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of our own at one file is that file's problem, and gives nothing away."""
    t0(tmp_path / "a.gguf")
    t0(tmp_path / "b.gguf")

    def failing(path: Path, *arguments: Any, **more: Any) -> Description:
        if path.name == "a.gguf":
            raise ZeroDivisionError("secret")
        return describe(path, *arguments, **more)

    monkeypatch.setattr(module, "describe", failing)
    found = entries(shelf)
    assert [False, True] == [entry.facts["loadable"] for entry in found.values()]
    assert "internal" == found["a.gguf"].facts["problem"]["code"]
    assert "secret" not in str(found["a.gguf"].facts)


def test_nothing_outside_the_roots_is_told(shelf: ModelFiles, tmp_path: Path) -> None:
    """What lies outside is not found, word for word like what is missing."""
    outside = t0(tmp_path.parent / f"{tmp_path.name}-outside.gguf")
    refusals = []
    for path in (str(outside), str(tmp_path / "missing.gguf"), "missing.gguf", "../x", "/"):
        with pytest.raises(NotFoundError) as refused:
            shelf.describe(path)
        refusals.append(refused.value.message.replace(path, "*"))
        assert "model_not_found" == refused.value.code
    outside.unlink()
    assert refusals[0] == refusals[1] == refusals[2]


def test_what_is_no_file_has_no_description(shelf: ModelFiles, tmp_path: Path) -> None:
    """A FIFO, and a folder with several models, are refused as such; a folder with one model is that model."""
    os.mkfifo(tmp_path / "fifo.gguf")
    with pytest.raises(FileError) as refused:
        shelf.describe("fifo.gguf")
    assert "not_regular_file" == refused.value.code
    folder = tmp_path / "folder"
    folder.mkdir()
    t0(folder / "a.gguf")
    assert shelf.describe("folder")[0].problem is None
    t0(folder / "b.gguf")
    with pytest.raises(FileError) as refused:
        shelf.describe("folder")
    assert "is_directory" == refused.value.code


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_told(shelf: ModelFiles, tmp_path: Path) -> None:
    """A file without rights stands in the list with that as its problem."""
    t0(tmp_path / "a.gguf").chmod(0)
    assert "permission_denied" == entries(shelf)["a.gguf"].facts["problem"]["code"]
    with pytest.raises(AccessError):
        shelf.describe("a.gguf")


@pytest.mark.parametrize("ask", [lambda shelf: shelf.page(0, 100), lambda shelf: shelf.describe("m.gguf")])
def test_nothing_stays_open(shelf: ModelFiles, tmp_path: Path, ask: Callable[[ModelFiles], object]) -> None:
    """Listing and describing keep no descriptor, whatever the files are like."""
    t0(tmp_path / "m.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    t0_split(tmp_path, (13, 13, 13), prefix="s")[1].unlink()
    ask(shelf)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        ask(shelf)
    assert before == len(os.listdir("/proc/self/fd"))
