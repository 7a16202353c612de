"""Every fact that makes a file unreadable, each with a file of its own."""

import time
import tracemalloc
from pathlib import Path

import pytest

from app.errors import FileError, codes_of
from app.modelfile.reader import read_model_file
from app.units import MIB
from tests.corpus import CORPUS, Bad, fresh
from tests.corpus_good import GOOD, Good
from tests.corpus_models import MODELS

# Said when something happens to a good file: tested in test_source.py and test_opening.py.
_DYNAMIC = {"file_changed", "read_failed"}


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


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.name)
def test_each_odd_file_is_read(good: Good, tmp_path: Path) -> None:
    """A file that is odd and fine is read, with as many bytes of tensors as it has."""
    assert good.nbytes == read_model_file(fresh(good, tmp_path)).n_bytes


def test_every_code_has_a_file() -> None:
    """Each code that a file at rest can be refused with has at least one file here."""
    due = set(codes_of(FileError)) - _DYNAMIC
    assert due == {bad.code for bad in (*CORPUS, *MODELS)}


def test_names_are_unique() -> None:
    """No two files share a name."""
    names = [file.name for file in (*CORPUS, *MODELS)] + [file.name for file in GOOD]
    assert len(set(names)) == len(names)
