"""Every fact that makes a file unreadable, each with a file of its own."""

import time
import tracemalloc
from pathlib import Path

import pytest

from app.errors import FileError, MetadataError
from app.modelfile.reader import read_model_file
from app.units import MIB
from tests.corpus import CORPUS, Bad, fresh

# Said when something happens to a good file: tested in test_source.py and test_opening.py.
_DYNAMIC = {"file_changed", "read_failed"}
# Said by those who know architectures and tokenizers, not by the reader.
_NOT_THE_READERS = set(MetadataError.codes) - {"missing_key", "wrong_key_type"}


@pytest.mark.parametrize("bad", CORPUS, ids=lambda bad: bad.name)
def test_each_bad_file_is_refused_by_its_fact(bad: Bad, tmp_path: Path) -> None:
    """A bad file gives its one code, a message that names the fact, and the facts as fields."""
    path = fresh(bad, tmp_path)
    with pytest.raises(FileError) as caught:
        read_model_file(path)
    error = caught.value
    assert bad.code == error.code
    assert bad.says in error.message
    assert {"file"} <= set(error.facts)
    assert str(error.facts["file"]) in error.message
    assert dict(bad.facts) == {name: error.facts.get(name) for name in bad.facts}


@pytest.mark.parametrize("bad", CORPUS, ids=lambda bad: bad.name)
def test_each_bad_file_is_refused_soon_and_cheaply(bad: Bad, tmp_path: Path) -> None:
    """A refusal takes under a second and a few megabytes, whatever the file claims."""
    path = fresh(bad, tmp_path)
    tracemalloc.start()
    try:
        start = time.monotonic()
        with pytest.raises(FileError):
            read_model_file(path)
        seconds = time.monotonic() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seconds < 1
    assert peak < 8 * MIB


def test_every_code_has_a_file() -> None:
    """Each code that the reader can give to bytes at rest has at least one file here."""
    due = (set(FileError.codes) | {"missing_key"}) - _DYNAMIC - _NOT_THE_READERS - {"bad_file"}
    assert due == {bad.code for bad in CORPUS}


def test_names_are_unique() -> None:
    """No two files share a name."""
    assert len({bad.name for bad in CORPUS}) == len(CORPUS)
