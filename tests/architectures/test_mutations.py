"""Metadata that nobody meant: whatever a file says, it is planned and proved, or refused with a typed error."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.common import declared_keys
from app.architectures.descriptor import Architecture
from app.architectures.memory import MemoryRequest
from app.architectures.understanding import Understanding, understand
from app.errors import GgufdError
from app.modelfile.reader import read_model_file
from app.modelfile.types import ArrayValue, KeyValue, ModelFile, Scalar, TensorInfo, ValueType
from app.planner.audit import audit
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode
from tests.examples import F32, example_file
from tests.oracle import targets, the_catalog

ROUNDS = 24
WHOLES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 255, 256, 1025, 2**31 - 1, 2**31, 2**32 - 1)
TYPES = (ValueType.U32, ValueType.I32, ValueType.U64, ValueType.F32, ValueType.BOOL, ValueType.STRING)
ARCHITECTURES = [architecture for architecture in the_catalog() if architecture.refused is None]


def _scalar(rng: random.Random, kind: ValueType) -> Scalar:
    if kind is ValueType.F32:
        return rng.choice((0.0, -1.0, 1e-5, 1e30, float("inf"), float("nan")))
    if kind is ValueType.BOOL:
        return rng.random() < 0.5
    if kind is ValueType.STRING:
        return rng.choice(("", "none", "yarn", "longrope", "silu"))
    value = rng.choice(WHOLES)
    return min(value, 2**31 - 1) * rng.choice((1, -1)) if kind is ValueType.I32 else value


def _entry(rng: random.Random, key: str, kind: ValueType, n_layer: int) -> KeyValue:
    if rng.random() < 0.65:
        return KeyValue(key=key, type=kind, value=_scalar(rng, kind))
    count = rng.choice((n_layer, n_layer, n_layer, 0, 1, 4, n_layer + 1, 513))
    elements = tuple(_scalar(rng, kind) for _ in range(count))
    array = ArrayValue(element_type=kind, count=count, offset=0, end=0, elements=elements)
    return KeyValue(key=key, type=ValueType.ARRAY, value=array)


def _mutated(rng: random.Random, architecture: Architecture, metadata: Mapping[str, KeyValue]) -> dict[str, KeyValue]:
    kinds = {param.name(architecture.name): param.kind.value for param in declared_keys(architecture.hparams)}
    present = [key for key in metadata if key in kinds]
    n_layer = metadata[f"{architecture.name}.block_count"].value
    assert isinstance(n_layer, int)
    mutated = dict(metadata)
    for _ in range(rng.choice((1, 1, 2, 3))):
        key = rng.choice(present if rng.random() < 0.6 else list(kinds))
        if rng.random() < 0.15:
            mutated.pop(key, None)
        else:
            kind = kinds[key] if rng.random() < 0.85 else rng.choice(TYPES)
            mutated[key] = _entry(rng, key, kind, n_layer)
    return mutated


def _with_its_tensors(understanding: Understanding) -> ModelFile:
    """The file as it would be if it had the tensors that its metadata asks for."""
    wanted: dict[str, TensorInfo] = {}
    for expected in understanding.architecture.manifest(understanding.hparams, {}):
        if not expected.required or expected.copy:
            continue
        shape = expected.shape
        while len(shape) > 1 and shape[-1] == 1:
            shape = shape[:-1]
        tensor = TensorInfo(name=expected.name, type=F32, shape=shape, shard=0, offset=0, nbytes=0)
        wanted.setdefault(expected.name, replace(tensor, nbytes=4 * tensor.n_elements))
    return replace(understanding.model, tensors=tuple(wanted.values()))


def _go_the_whole_way(rng: random.Random, model: ModelFile) -> None:
    understanding = understand(model, the_catalog())
    understanding.facts()
    asked = understand(_with_its_tensors(understanding), the_catalog())
    for mode in (SplitMode.TENSOR, SplitMode.LAYER):
        n_devices = rng.randint(1, 5)
        split = replace(
            targets(mode, n_devices),
            tensor_split=rng.choice((None, tuple(rng.choice((0.0, 1.0, 3.0, 1e36)) for _ in range(n_devices)))),
            context=rng.choice((None, MemoryRequest(n_ctx=rng.choice((0, 1, 1000)), swa_full=rng.random() < 0.5))),
        )
        audit(plan_split(asked, split), asked)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_odd_metadata_is_planned_or_refused(architecture: Architecture, tmp_path: Path) -> None:
    """Keys dropped, retyped, turned into lists and set to odd numbers: nothing but typed errors comes of it."""
    model = read_model_file(example_file(architecture, tmp_path / "example.gguf"))
    rng = random.Random(architecture.name)
    for _ in range(ROUNDS):
        try:
            _go_the_whole_way(rng, replace(model, metadata=_mutated(rng, architecture, model.metadata)))
        except GgufdError:
            continue


def test_a_feed_forward_of_one_unit_is_proved(tmp_path: Path) -> None:
    """A projection with one row is written without its second axis; it is cut along it, and the proofs know it."""
    architecture = the_catalog().get("llama")
    path = example_file(
        replace(architecture, example={**architecture.example, "feed_forward_length": 1}), tmp_path / "m"
    )
    understanding = understand(read_model_file(path), the_catalog())
    assert all(proof.holds for proof in audit(plan_split(understanding, targets(SplitMode.TENSOR, 2)), understanding))
