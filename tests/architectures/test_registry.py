"""The registry: what is in the folder is in the catalog, and nothing else is."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from app.architectures.registry import Catalog, DuplicateArchitectureError, load_catalog
from app.errors import MetadataError

FILE = '''"""An architecture made up for a test."""
from dataclasses import replace
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
ARCHITECTURE = replace(LLAMA, name={name!r})
'''


def _package(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> ModuleType:
    package = folder / "made_up_catalog"
    package.mkdir()
    (package / "__init__.py").write_text('"""A catalog made up for a test."""\n')
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.startswith("made_up_catalog")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("made_up_catalog")


def test_every_file_of_the_folder_is_an_architecture() -> None:
    """A catalog file is named after its architecture, with hyphens and dots as underscores."""
    catalog = load_catalog()
    folder = Path(str(sys.modules["app.architectures.catalog"].__file__)).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {architecture.name.replace("-", "_").replace(".", "_") for architecture in catalog}


def test_two_files_of_one_name_stop_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two descriptions of one architecture are a mistake that names both files."""
    package = _package(tmp_path, monkeypatch, one=FILE.format(name="same"), two=FILE.format(name="same"))
    with pytest.raises(DuplicateArchitectureError, match=r"one and .*two"):
        load_catalog(package)


def test_a_name_from_a_file_is_only_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model cannot make ggufd import anything: a module's path is no architecture's name."""
    catalog = load_catalog(_package(tmp_path, monkeypatch, one=FILE.format(name="known")))
    for name in ("one", "made_up_catalog.one", "os", "", "../known"):
        with pytest.raises(MetadataError):
            catalog.get(name)
    assert catalog.get("known").name == "known"


def test_the_catalog_is_in_alphabetical_order() -> None:
    """Listing architectures gives the same order everywhere."""
    catalog: Catalog = load_catalog()
    names = [architecture.name for architecture in catalog]
    assert names == sorted(names)
