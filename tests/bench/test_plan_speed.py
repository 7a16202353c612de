"""How long planning takes, and how it grows."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.understanding import Understanding, understand
from app.modelfile.reader import read_model_file
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode
from tests.bench.real_models import ROUNDS, computing, medians, splittable
from tests.builders import t0
from tests.oracle import targets, the_catalog

pytestmark = pytest.mark.bench


def _seconds(understanding: Understanding) -> float:
    # what was compared before is compared again: a plan starts from a file that was only read
    fresh, split = replace(understanding), targets(SplitMode.TENSOR, 8)
    return computing(lambda: plan_split(fresh, split))


def test_real_models_are_planned_in_milliseconds(oracle_dir: Path, tmp_path: Path) -> None:
    """Every recorded real model that may be split is planned over 8 devices in under 20 ms (median of 9)."""
    models = splittable(oracle_dir, tmp_path)
    took = medians(models, _seconds)
    for file, (seconds,) in took.items():
        print(f"{file}: {len(models[file].model.tensors)} tensors, {seconds * 1e3:.1f} ms")
    assert {} == {file: seconds for file, (seconds,) in took.items() if seconds > 0.020}


def test_planning_grows_with_tensors(tmp_path: Path) -> None:
    """From 32 to 512 layers the time per layer stays the same: twice the layers, twice the time, not four times."""
    per_layer = {}
    for layers in (32, 64, 128, 256, 512):
        path = t0(tmp_path / "m.gguf", layers, seed=None)
        understanding = understand(read_model_file(path), the_catalog())
        per_layer[layers] = statistics.median(_seconds(understanding) for _ in range(ROUNDS)) / layers
        print(f"{layers} layers: {per_layer[layers] * 1e6:.0f} µs per layer")
    assert per_layer[512] < 2 * per_layer[32]
