"""What planning the caches adds to planning the weights."""

import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.memory import MemoryRequest
from app.architectures.understanding import Understanding
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode, SplitTargets
from tests.oracle import Models, records, targets, the_catalog

pytestmark = pytest.mark.bench

ROUNDS = 9


def _seconds(understanding: Understanding, split: SplitTargets) -> float:
    fresh = replace(understanding)
    start = time.thread_time()  # it only computes: what the thread took, not what others took from it
    plan_split(fresh, split)
    return time.thread_time() - start


def test_real_models_are_planned_with_their_caches_in_milliseconds(oracle_dir: Path, tmp_path: Path) -> None:
    """Each recorded real model that may be split is planned with caches over 8 devices in under 25 ms (median of 9)."""
    models = Models(oracle_dir, tmp_path)
    weights = targets(SplitMode.TENSOR, 8)
    both = replace(weights, context=MemoryRequest(n_ctx=4096))
    slow: dict[str, float] = {}
    added: list[float] = []
    for record in records(oracle_dir, "facts/real"):
        if record["arch"] not in the_catalog() or not record["supports_sm_tensor"]:
            continue
        understanding = models("real", record["file"])
        rounds = [(_seconds(understanding, weights), _seconds(understanding, both)) for _ in range(ROUNDS)]
        alone, together = (statistics.median(seconds) for seconds in zip(*rounds, strict=True))
        added.append(together / alone)
        print(f"{record['file']}: {alone * 1e3:.1f} ms without, {together * 1e3:.1f} ms with caches")
        if together > 0.025:
            slow[record["file"]] = together
    assert slow == {}
    assert statistics.median(added) < 1.5
