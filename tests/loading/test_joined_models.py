"""Whole models, loaded onto devices and joined again: byte for byte the file."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend
from app.errors import PlanError
from app.loading.negotiation import LoadMode
from app.loading.readback import stream
from app.loading.request import PlanRequest
from app.loading.run import LoadedModel, World, run_load
from app.modelfile.reader import read_model_file
from app.modelfile.types import ModelFile
from app.planner.plan import SplitMode
from tests.builders import materialise
from tests.faults import REFERENCE_FAULTS
from tests.oracle import records, the_catalog
from tests.real_models import real_model_path

MEMORY = 4 << 30
HOSTS, FAKES = ("host0", "host1"), ("sim0", "sim1")
DEVICES = (HOSTS[0], FAKES[0], HOSTS[1], FAKES[1])
SKEWED = (3.0, 1.0, 2.0, 5.0)
Splits = list[tuple[int, bool]]
SPLITS: Splits = [(count, skewed) for count in range(1, 5) for skewed in (False, True)]
SOME: Splits = [(3, True)]


@pytest.fixture(scope="module")
def world() -> World:
    backends = {name: HostBackend(name, MEMORY) for name in ("host", *HOSTS)}
    fakes = {name: SimulatedBackend(name, MEMORY, keep_bytes=True) for name in FAKES}
    return World(catalog=the_catalog(), backends={**backends, **fakes}, transfer_threads=2)


@pytest.fixture(scope="module", params=["smollm2-135m.gguf", "gemma3-270m.gguf"])
def real_model(request: pytest.FixtureRequest) -> Path:
    return real_model_path(str(request.param))


def _ignore(_signal: object) -> None:
    return


def _load(world: World, path: Path, mode: SplitMode, count: int, *, skewed: bool, load_mode: LoadMode) -> LoadedModel:
    request = PlanRequest(
        model=str(path),
        split_mode=mode,
        devices=DEVICES[:count],
        tensor_split=SKEWED[:count] if skewed else None,
        load_mode=load_mode,
    )
    return run_load(request, world, _ignore, threading.Event())


def _hashes(model: ModelFile) -> dict[str, str]:
    found = {}
    for tensor in model.tensors:
        digest = hashlib.sha256()
        with model.shards[tensor.shard].path.open("rb") as file:
            file.seek(tensor.offset)
            left = tensor.nbytes
            while left:
                chunk = file.read(min(left, 1 << 20))
                digest.update(chunk)
                left -= len(chunk)
        found[tensor.name] = digest.hexdigest()
    return found


def _joined(loaded: LoadedModel) -> Iterator[tuple[str, str]]:
    plan = loaded.prepared.plan
    for index, tensor in enumerate(plan.tensors):
        digest = hashlib.sha256()
        for piece in stream(plan, loaded.layout, loaded.buffers, index):
            digest.update(piece)
        yield tensor.name, digest.hexdigest()


def _check(
    world: World, path: Path, expected: dict[str, str], mode: SplitMode, load_mode: LoadMode, splits: Splits = SPLITS
) -> set[tuple[str, str]]:
    """Answers the architectures of which a plan was refused as illegal, with the proof that failed."""
    refused: set[tuple[str, str]] = set()
    for count, skewed in splits:
        try:
            loaded = _load(world, path, mode, count, skewed=skewed, load_mode=load_mode)
        except PlanError as error:
            # agreeing with the reference can mean slices that do not go together: such a plan is not loaded
            # (what it aborts on is refused before that, and held against its recorded aborts elsewhere)
            if "proof" in error.facts:
                refused.add((str(error.facts["architecture"]), str(error.facts["proof"])))
            continue
        try:
            joined = set(_joined(loaded))
        finally:
            loaded.free()
        assert (count, skewed, set(expected.items())) == (count, skewed, joined)
    return refused


@pytest.mark.slow
@pytest.mark.parametrize("mode", [SplitMode.TENSOR, SplitMode.LAYER])
def test_real_models_come_back(world: World, real_model: Path, mode: SplitMode) -> None:
    """Every tensor of a real model, hashed after joining its slices over 1 to 4 devices, is the file's."""
    expected = _hashes(read_model_file(real_model))
    load_mode = LoadMode.NONE if mode is SplitMode.TENSOR else LoadMode.AUTO
    assert set() == _check(world, real_model, expected, mode, load_mode)
    assert {0} == {backend.facts().allocated_bytes for backend in world.backends.values()}


@pytest.mark.parametrize("splits", [pytest.param(SPLITS, marks=pytest.mark.slow), SOME], ids=["all", "some"])
def test_recorded_small_models_come_back(world: World, oracle_dir: Path, tmp_path: Path, splits: Splits) -> None:
    """Every small recorded model, filled with seeded numbers, comes back in tensor and in layer mode.

    Where the reference's own cuts do not go together the load is refused, and nowhere else.
    """
    path = tmp_path / "toy.gguf"
    refused: set[tuple[str, str]] = set()
    for group in ("toy", "toy_q"):
        for record in records(oracle_dir, f"facts/{group}"):
            expected = _hashes(materialise(oracle_dir / "headers" / group / f"{record['file']}.hdr", path, seed=7))
            assert set() == _check(world, path, expected, SplitMode.LAYER, LoadMode.NONE, splits)
            if record["supports_sm_tensor"]:
                refused |= _check(world, path, expected, SplitMode.TENSOR, LoadMode.NONE, splits)
    assert refused <= REFERENCE_FAULTS
    assert {0} == {backend.facts().allocated_bytes for backend in world.backends.values()}
