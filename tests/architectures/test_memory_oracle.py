"""Which caches the reference makes for each recorded model, and for each recorded context."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.architectures.memory import MemoryRequest
from app.architectures.understanding import Understanding
from app.ggml import BY_NAME
from tests.oracle import GROUPS, Models, records, the_catalog

Described = list[tuple[str, str, tuple[int, ...]]]


@pytest.fixture(scope="module")
def models(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(oracle_dir, tmp_path_factory.mktemp("models"))


def _known(oracle: Path, group: str) -> Iterator[dict[str, Any]]:
    return (record for record in records(oracle, f"facts/{group}") if record["arch"] in the_catalog())


def _made(understanding: Understanding, request: MemoryRequest) -> Described:
    caches = understanding.architecture.caches(understanding.hparams, request)
    return [(cache.name, cache.type.name, (*cache.shape, 1, 1, 1)[:4]) for cache in caches]


def _recorded(record: dict[str, Any]) -> Described:
    return [(name, kind, tuple(shape)) for name, kind, shape in record["caches"]]


@pytest.mark.parametrize("group", GROUPS)
def test_caches_are_the_references(oracle_dir: Path, models: Models, group: str) -> None:
    """Name, type, shape and order of every cache of every recorded model."""
    compared = 0
    for record in _known(oracle_dir, group):
        if record["context"]:
            made = _made(models(group, record["file"]), MemoryRequest(n_ctx=record["n_ctx"]))
            assert (record["file"], _recorded(record)) == (record["file"], made)
            compared += 1
    assert compared > 0


@pytest.mark.parametrize("group", ["real", "toy"])
def test_caches_of_every_context_are_the_references(oracle_dir: Path, models: Models, group: str) -> None:
    """The same for other lengths, several sequences, windows of their own size, and quantised keys and values."""
    known = {record["file"] for record in _known(oracle_dir, group)}
    compared = 0
    for record in records(oracle_dir, f"facts/caches_{group}"):
        if record["file"] in known:
            kind = BY_NAME[record["type_kv"]]
            request = MemoryRequest(
                n_ctx=record["n_ctx"],
                n_seq_max=record["n_seq_max"],
                n_ubatch=record["n_ubatch"],
                swa_full=record["swa_full"],
                type_k=kind,
                type_v=kind,
            )
            made = _made(models(group, record["file"]), request)
            assert (record["file"], request, _recorded(record)) == (record["file"], request, made)
            compared += 1
    assert compared > 0
