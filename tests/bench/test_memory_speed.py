"""What planning the caches adds to planning the weights."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.memory import MemoryRequest
from app.architectures.understanding import Understanding
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode, SplitTargets
from tests.bench.real_models import computing, medians, splittable
from tests.oracle import targets

pytestmark = pytest.mark.bench


def _planning(split: SplitTargets) -> Callable[[Understanding], float]:
    def seconds(understanding: Understanding) -> float:
        fresh = replace(understanding)
        return computing(lambda: plan_split(fresh, split))

    return seconds


def test_real_models_are_planned_with_their_caches_in_milliseconds(oracle_dir: Path, tmp_path: Path) -> None:
    """Each recorded real model that may be split is planned with caches over 8 devices in under 25 ms (median of 9)."""
    weights = targets(SplitMode.TENSOR, 8)
    both = replace(weights, context=MemoryRequest(n_ctx=4096))
    took = medians(splittable(oracle_dir, tmp_path), _planning(weights), _planning(both))
    for file, (alone, together) in took.items():
        print(f"{file}: {alone * 1e3:.1f} ms without, {together * 1e3:.1f} ms with caches")
    assert {} == {file: together for file, (_, together) in took.items() if together > 0.025}
    assert statistics.median(together / alone for alone, together in took.values()) < 1.5
