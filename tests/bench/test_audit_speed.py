"""What the proofs about a plan cost."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.memory import MemoryRequest
from app.planner.audit import audit
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode
from tests.bench.real_models import computing, medians, splittable
from tests.oracle import targets

pytestmark = pytest.mark.bench


def test_real_models_are_audited_in_milliseconds(oracle_dir: Path, tmp_path: Path) -> None:
    """All proofs about a real model's plan over 8 devices, caches included, take under 25 ms (median of 9)."""
    split = replace(targets(SplitMode.TENSOR, 8), context=MemoryRequest(n_ctx=4096))
    models = splittable(oracle_dir, tmp_path)
    plans = {file: plan_split(understanding, split) for file, understanding in models.items()}
    took = medians({file: (plans[file], models[file]) for file in models}, lambda pair: computing(lambda: audit(*pair)))
    for file, (seconds,) in took.items():
        entries = len(plans[file].tensors) + len(plans[file].caches)
        print(f"{file}: {entries} entries audited in {seconds * 1e3:.1f} ms")
    assert {} == {file: seconds for file, (seconds,) in took.items() if seconds > 0.025}
