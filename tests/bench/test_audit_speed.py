"""What the proofs about a plan cost."""

import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.memory import MemoryRequest
from app.planner.audit import audit
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode
from tests.oracle import Models, records, targets

pytestmark = pytest.mark.bench

ROUNDS = 9


def test_real_models_are_audited_in_milliseconds(oracle_dir: Path, tmp_path: Path) -> None:
    """All proofs about a real model's plan over 8 devices, caches included, take under 25 ms (median of 9)."""
    models = Models(oracle_dir, tmp_path)
    split = replace(targets(SplitMode.TENSOR, 8), context=MemoryRequest(n_ctx=4096))
    slow: dict[str, float] = {}
    for record in records(oracle_dir, "facts/real"):
        if not record["supports_sm_tensor"]:
            continue
        understanding = models("real", record["file"])
        plan = plan_split(understanding, split)
        rounds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            audit(plan, understanding)
            rounds.append(time.perf_counter() - start)
        took = statistics.median(rounds)
        print(f"{record['file']}: {len(plan.tensors) + len(plan.caches)} entries audited in {took * 1e3:.1f} ms")
        if took > 0.025:
            slow[record["file"]] = took
    assert slow == {}
