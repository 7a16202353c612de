"""What the reference says of each recorded model, architecture by architecture."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.architectures.understanding import understand
from app.errors import MetadataError
from app.modelfile.types import ModelFile
from tests.oracle import GROUPS, Models, records, the_catalog

NOT_FACTS = {"file", "load", "context", "n_ctx", "n_tensors", "tensors", "caches"}


@pytest.fixture(scope="module")
def models(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(oracle_dir, tmp_path_factory.mktemp("models"))


def _known(oracle: Path, group: str) -> Iterator[dict[str, Any]]:
    return (record for record in records(oracle, f"facts/{group}") if record["arch"] in the_catalog())


@pytest.mark.parametrize("group", GROUPS)
def test_facts_are_the_references(oracle_dir: Path, models: Models, group: str) -> None:
    """Every fact of every recorded model is the reference's, and no recorded fact is left unsaid."""
    for record in _known(oracle_dir, group):
        expected = {key: value for key, value in record.items() if key not in NOT_FACTS}
        assert expected == models(group, record["file"]).facts(), record["file"]


@pytest.mark.parametrize("group", GROUPS)
def test_tensors_taken_are_the_references(oracle_dir: Path, models: Models, group: str) -> None:
    """The tensors a model takes, with type and shape, are those the reference takes."""
    for record in _known(oracle_dir, group):
        comparison = models(group, record["file"]).comparison
        comparison.require()
        unused = set(comparison.unused)
        taken = {
            (match.tensor.name, match.tensor.type.name, (*match.tensor.shape, 1, 1, 1)[:4])
            for match in comparison.matches
            if match.tensor not in unused
        }
        expected = {(name, kind, tuple(shape)) for name, kind, shape in record["tensors"]}
        assert expected == taken, record["file"]


def _verdict(model: ModelFile) -> tuple[str, str]:
    try:
        understand(model, the_catalog()).require_tensors()
    except MetadataError as error:
        return "refused", str(error)
    return "ok", ""


@pytest.mark.slow
def test_what_is_required_is_what_the_reference_requires(oracle_dir: Path, models: Models) -> None:
    """Leaving out a tensor or key is refused where the reference refuses or dies, and accepted where it accepts."""
    with gzip.open(oracle_dir / "required" / "toy.json.gz") as file:
        required = json.load(file)
    for record in _known(oracle_dir, "toy"):
        model = models("toy", record["file"]).model
        recorded = required[record["file"].removesuffix(".gguf")]
        for name, tensor in recorded["tensors"].items():
            rest = tuple(other for other in model.tensors if other.name != name)
            verdict, message = _verdict(replace(model, tensors=rest))
            expected = "ok" if tensor["without"] == "ok" else "refused"
            assert (record["file"], name, expected) == (record["file"], name, verdict)
            assert verdict == "ok" or name in message
        for key, answer in recorded["keys"].items():
            rest_of = {other: entry for other, entry in model.metadata.items() if other != key}
            verdict, message = _verdict(replace(model, metadata=rest_of))
            expected = "ok" if answer == "ok" else "refused"
            assert (record["file"], key, expected) == (record["file"], key, verdict), message
            # the key is named, also where it has a default and something else no longer agrees without it; tensors
            # that nothing knows of any more may be named themselves
            assert verdict == "ok" or key in message or "does not know" in message, (record["file"], key, message)
