"""How long planning takes, and how it grows."""

import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.understanding import Understanding, understand
from app.modelfile.reader import read_model_file
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode
from tests.builders import t0
from tests.oracle import Models, records, targets, the_catalog

pytestmark = pytest.mark.bench

ROUNDS = 9


def _seconds(understanding: Understanding, n_devices: int = 8) -> float:
    split = targets(SplitMode.TENSOR, n_devices)
    rounds = []
    for _ in range(ROUNDS):
        # what was compared before is compared again: a plan starts from a file that was only read
        fresh = replace(understanding)
        start = time.perf_counter()
        plan_split(fresh, split)
        rounds.append(time.perf_counter() - start)
    return statistics.median(rounds)


def test_real_models_are_planned_in_milliseconds(oracle_dir: Path, tmp_path: Path) -> None:
    """Every recorded real model that may be split is planned over 8 devices in under 20 ms (median of 9)."""
    models = Models(oracle_dir, tmp_path)
    slow: dict[str, float] = {}
    for record in records(oracle_dir, "facts/real"):
        if record["arch"] not in the_catalog() or not record["supports_sm_tensor"]:
            continue
        understanding = models("real", record["file"])
        took = _seconds(understanding)
        print(f"{record['file']}: {len(understanding.model.tensors)} tensors, {took * 1e3:.1f} ms")
        if took > 0.020:
            slow[record["file"]] = took
    assert slow == {}


def test_planning_grows_with_tensors(tmp_path: Path) -> None:
    """From 32 to 512 layers the time per layer stays the same: twice the layers, twice the time, not four times."""
    per_layer = {}
    for layers in (32, 64, 128, 256, 512):
        path = t0(tmp_path / "m.gguf", layers, seed=None)
        per_layer[layers] = _seconds(understand(read_model_file(path), the_catalog())) / layers
        print(f"{layers} layers: {per_layer[layers] * 1e6:.0f} µs per layer")
    assert per_layer[512] < 2 * per_layer[32]
