"""One contract for the whole catalog, with no list of it: whatever is in the folder is planned, loaded and joined."""

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.common import declared_keys
from app.architectures.descriptor import Architecture
from app.architectures.hparams import Kind
from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend
from app.errors import GgufdError, MetadataError, PlanError
from app.loading.context import ContextRequest
from app.loading.negotiation import LoadMode
from app.loading.readback import join
from app.loading.request import PlanRequest
from app.loading.run import LoadedModel, World, prepare, run_load
from app.modelfile.reader import read_model_file
from app.modelfile.types import ValueType
from app.modelfile.writer import Typed, write_gguf
from app.planner.plan import SplitMode
from tests.builders import t0
from tests.examples import example_file, example_metadata
from tests.oracle import the_catalog

MEMORY = 1 << 30
DEVICES = tuple(f"d{index}" for index in range(5))
SKEWED = (3.0, 1.0, 2.0, 0.0, 5.0)


def _world() -> World:
    backends = {"host": HostBackend("host", MEMORY)} | {
        name: SimulatedBackend(name, MEMORY, keep_bytes=True) for name in DEVICES
    }
    return World(catalog=the_catalog(), backends=backends, transfer_threads=2)


LOADABLE = [architecture for architecture in the_catalog() if architecture.refused is None]
REFUSED = [architecture for architecture in the_catalog() if architecture.refused is not None]


def _ignore(_signal: object) -> None:
    return


def _request(path: Path, mode: SplitMode, n_devices: int, *, skewed: bool) -> PlanRequest:
    return PlanRequest(
        model=str(path),
        split_mode=mode,
        devices=DEVICES[:n_devices],
        tensor_split=SKEWED[:n_devices] if skewed else None,
        load_mode=LoadMode.NONE,
        context=ContextRequest(n_ctx=64, n_seq_max=2) if skewed else None,
    )


def _attempt(request: PlanRequest, world: World) -> LoadedModel | PlanError:
    try:
        return run_load(request, world, _ignore, threading.Event())
    except PlanError as refusal:
        return refusal


def _load(request: PlanRequest, world: World, architecture: Architecture) -> LoadedModel:
    """Load; what cannot be split because of a cache is loaded without its context."""
    loaded = _attempt(request, world)
    if isinstance(loaded, LoadedModel):
        return loaded
    assert request.context is not None
    context, request = request.context.memory_request(), replace(request, context=None)
    caches = architecture.caches(prepare(request, world).understanding.hparams, context)
    assert loaded.code == "unsupported_split"
    assert loaded.facts["tensor"] in {cache.name for cache in caches}
    return run_load(request, world, _ignore, threading.Event())


def _caches_are_zero(loaded: LoadedModel) -> bool:
    plan = loaded.prepared.plan
    return all(
        join(plan, loaded.layout, loaded.buffers, index) == bytes(cache.nbytes)
        for index, cache in enumerate(plan.caches, start=len(plan.tensors))
    )


def _joined(loaded: LoadedModel) -> dict[str, set[bytes]]:
    plan = loaded.prepared.plan
    found: dict[str, set[bytes]] = {}
    for index, tensor in enumerate(plan.tensors):
        found.setdefault(tensor.name, set()).add(join(plan, loaded.layout, loaded.buffers, index))
    return found


@pytest.mark.parametrize("architecture", LOADABLE, ids=lambda architecture: architecture.name)
def test_every_architecture_is_planned_loaded_and_joined(architecture: Architecture, tmp_path: Path) -> None:
    """Its own example loads in every mode over 1 to 5 devices: slices join to the file's tensors, caches are zero."""
    path = example_file(architecture, tmp_path / "example.gguf")
    raw, model = path.read_bytes(), read_model_file(path)
    expected = {tensor.name: {raw[tensor.offset : tensor.offset + tensor.nbytes]} for tensor in model.tensors}
    world = _world()
    for mode in (SplitMode.NONE, SplitMode.LAYER, SplitMode.TENSOR):
        for n_devices in range(1, 6) if mode is not SplitMode.NONE else (1, 2):  # the others would hold nothing
            for skewed in (False, True):
                request = _request(path, mode, n_devices, skewed=skewed)
                if mode is SplitMode.TENSOR and not architecture.capabilities.tensor_split:
                    with pytest.raises(PlanError) as refused:
                        run_load(request, world, _ignore, threading.Event())
                    assert refused.value.code == "unsupported_split"
                    assert refused.value.facts["architecture"] == architecture.name
                    continue
                loaded = _load(request, world, architecture)
                assert _caches_are_zero(loaded)
                assert expected == _joined(loaded) | {
                    tensor.name: expected[tensor.name] for tensor in loaded.prepared.understanding.comparison.unused
                }
                loaded.free()
    assert [0] * len(world.backends) == [backend.facts().allocated_bytes for backend in world.backends.values()]


@pytest.mark.parametrize("architecture", REFUSED, ids=lambda architecture: architecture.name)
def test_what_is_refused_says_why(architecture: Architecture, tmp_path: Path) -> None:
    """An architecture that is known and never loaded is refused as no model, with its reason."""
    path = tmp_path / "refused.gguf"
    t0(path, set_keys={"general.architecture": architecture.name})
    with pytest.raises(MetadataError) as refused:
        run_load(_request(path, SplitMode.LAYER, 1, skewed=False), _world(), _ignore, threading.Event())
    assert refused.value.code == architecture.refused_code
    assert str(architecture.refused) in str(refused.value)


@pytest.mark.parametrize("architecture", LOADABLE, ids=lambda architecture: architecture.name)
def test_numbers_that_are_none_have_an_answer_in_json(architecture: Architecture, tmp_path: Path) -> None:
    """Whichever number of the metadata is not finite, the plan or the refusal that follows can be told in JSON."""
    world, request = _world(), _request(tmp_path / "m.gguf", SplitMode.LAYER, 2, skewed=False)
    example = read_model_file(example_file(architecture, tmp_path / "example.gguf"))
    tensors = [(tensor.name, tensor.type, tensor.shape, None) for tensor in example.tensors]
    for param in declared_keys(architecture.hparams):
        for number in (math.nan, math.inf, -math.inf) if param.kind is Kind.F32 else ():
            odd = {**example_metadata(architecture), param.name(architecture.name): Typed(ValueType.F32, number)}
            write_gguf(tmp_path / "m.gguf", odd, tensors)
            try:
                answer = prepare(request, world).as_json()
            except GgufdError as refusal:
                answer = dict(refusal.facts)
            json.dumps(answer, allow_nan=False)
