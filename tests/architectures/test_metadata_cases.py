"""Metadata that fits its tensors or does not, through the reader and the catalog."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.understanding import understand
from app.errors import MetadataError
from app.modelfile.reader import read_model_file
from tests.corpus import Bad
from tests.examples import example_file
from tests.metadata_cases import ACCEPTED, REFUSED, Accepted
from tests.oracle import the_catalog


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
def test_metadata_that_fits_is_accepted(tmp_path: Path, case: Accepted) -> None:
    """The model is understood, with the facts that follow and exactly the bytes it has."""
    understanding = understand(read_model_file(case.build(tmp_path)), the_catalog())
    understanding.comparison.require()
    facts = understanding.facts()
    assert case.nbytes == facts["n_bytes"]
    assert dict(case.facts) == {name: facts[name] for name in case.facts}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_metadata_that_does_not_fit_is_refused(tmp_path: Path, case: Bad) -> None:
    """The refusal has its code, names file and key or tensor, and what was expected and found; at once."""
    path = case.build(tmp_path)
    started = time.monotonic()
    with pytest.raises(MetadataError) as refused:
        understand(read_model_file(path), the_catalog()).comparison.require()
    assert time.monotonic() - started < 1
    error = refused.value
    assert (case.code, str(path)) == (error.code, error.facts["file"])
    assert case.says in error.message
    assert len(error.message) < 400
    assert dict(case.facts) == {name: error.facts[name] for name in case.facts}


OUTPUT = "output.weight"


def test_where_an_output_of_its_own_is_required_its_absence_is_told(tmp_path: Path) -> None:
    """An architecture that cannot use its embedding as the output names the output as missing; others tie it."""
    required = set()
    for architecture in the_catalog():
        if architecture.refused is not None:
            continue
        model = read_model_file(example_file(architecture, tmp_path / "m.gguf"))
        if OUTPUT not in model.by_name:
            continue
        required.add(architecture.name)
        rest = tuple(tensor for tensor in model.tensors if tensor.name != OUTPUT)
        with pytest.raises(MetadataError) as refused:
            understand(replace(model, tensors=rest), the_catalog()).comparison.require()
        assert ("missing_tensor", OUTPUT) == (refused.value.code, refused.value.facts["tensor"]), architecture.name
    assert {"gptneox", "phi2", "olmo2", "rwkv7", "gpt-oss"} < required
    assert not {"llama", "gemma3", "qwen3"} & required
