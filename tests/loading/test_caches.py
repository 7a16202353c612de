"""Caches on their way: planned with the weights, allocated with them, zero, counted, and freed with the model."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import CapacityError
from app.loading.context import ContextRequest
from app.loading.negotiation import LoadMode
from app.loading.readback import join
from app.loading.request import DeclaredDevice, PlanRequest
from app.loading.run import LoadedModel, World, prepare, run_load
from app.loading.signals import Allocated, Freed, Placed, Signal
from app.planner.plan import SplitMode
from tests.builders import t0
from tests.worlds import allocated, world

WEIGHTS = 312_576
CACHES = 2 * 2 * 32 * 256 * 2  # two layers, K and V, two heads of 16, 256 cells, two bytes each
REQUEST = PlanRequest(model="m.gguf", context=ContextRequest(n_ctx=100))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    t0(tmp_path / "m.gguf")
    return tmp_path


def _load(place: World, wish: PlanRequest, signals: list[Signal]) -> LoadedModel:
    return run_load(wish, place, signals.append, threading.Event())


def _bytes(signals: list[Signal], kind: type[Allocated] | type[Placed] | type[Freed]) -> int:
    return sum(signal.nbytes for signal in signals if isinstance(signal, kind))


@pytest.mark.parametrize("split_mode", [SplitMode.NONE, SplitMode.LAYER, SplitMode.TENSOR])
@pytest.mark.parametrize("load_mode", [LoadMode.AUTO, LoadMode.NONE])
def test_caches_are_allocated_zeroed_and_go_with_the_model(
    root: Path, split_mode: SplitMode, load_mode: LoadMode
) -> None:
    """A load with a context holds the planned caches, every byte of them zero, and gives them back at its end."""
    place = world(root)
    signals: list[Signal] = []
    loaded = _load(place, replace(REQUEST, split_mode=split_mode, load_mode=load_mode), signals)
    plan = loaded.prepared.plan

    assert sum(cache.nbytes for cache in plan.caches) == sum(total.cache_bytes for total in plan.totals) == CACHES
    assert allocated(place) == {name: nbytes for name, nbytes in loaded.prepared.planned_bytes.items() if nbytes}
    planned = sum(total.total_bytes for total in plan.totals)
    assert planned == _bytes(signals, Placed) == _bytes(signals, Allocated)
    for index, cache in enumerate(plan.caches, start=len(plan.tensors)):
        assert bytes(cache.nbytes) == join(plan, loaded.layout, loaded.buffers, index)
    weights = {placement.buffer for placement in loaded.layout.placements if placement.tensor < len(plan.tensors)}
    caches = {placement.buffer for placement in loaded.layout.placements if placement.tensor >= len(plan.tensors)}
    assert caches
    assert not weights & caches
    loaded.free()
    assert {} == allocated(place)
    assert planned == _bytes(signals, Freed)


def test_a_model_that_fits_without_its_caches_is_refused_with_them(root: Path) -> None:
    """Caches count: the plan says by how much they do not fit, and nothing is allocated."""
    tight = DeclaredDevice(name="d", kind="simulated", memory_bytes=WEIGHTS + CACHES - 8192 - 1)
    wish = replace(REQUEST, devices=(tight,), load_mode=LoadMode.NONE)
    place = world(root)
    plan = prepare(wish, place).plan

    assert not plan.fits
    assert {"d": 1, "host": 0} == {total.name: total.shortfall_bytes for total in plan.totals}
    with pytest.raises(CapacityError):
        _load(place, wish, [])
    assert prepare(replace(wish, context=None), place).plan.fits


def test_layers_on_the_host_keep_their_caches_there(root: Path) -> None:
    """A cache lives where its layer is computed, whatever devices the weights of that layer were sent to."""
    plan = prepare(replace(REQUEST, n_gpu_layers=2), world(root)).plan
    assert ["host", "host"] == [cache.device for cache in plan.caches if cache.layer == 0]
    assert "host" not in {cache.device for cache in plan.caches if cache.layer == 1}


def test_a_longer_context_is_another_plan(root: Path) -> None:
    """The context is part of what a plan's id stands for."""
    place = world(root)
    ids = {
        prepare(replace(REQUEST, context=context), place).plan_id
        for context in (None, ContextRequest(), ContextRequest(n_ctx=300), ContextRequest(n_ctx=300, type_k="f32"))
    }
    assert 4 == len(ids)
