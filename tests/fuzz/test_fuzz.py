"""A bounded search for files that break the way from bytes to a plan, guided by the code they reach."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.units import KIB
from tests.builders import build, llama_keys, llama_tensors, t0_split, vocabulary
from tests.corpus import CORPUS, fresh
from tests.corpus_good import GOOD
from tests.corpus_models import MODELS
from tests.fuzz.target import Target

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = int(os.environ.get("GGUFD_FUZZ_SECONDS", "30"))
RUNS = 200_000
LARGEST = 16 * KIB
_SMALL = {"embd": 8, "ff": 16, "heads": 2, "kv": 1}


def seeds(folder: Path) -> dict[str, bytes]:
    """The corpus and a few small models, as inputs; of files too large for one, the header with a hole behind it."""
    paths = {bad.name: fresh(bad, folder / "corpus") for bad in (*CORPUS, *MODELS)}
    paths |= {good.name: fresh(good, folder / "corpus") for good in GOOD}
    small = folder / "small"
    small.mkdir()
    keys = {**llama_keys(2, **_SMALL), **vocabulary(32), "general.tags": ["a", "b"], "x.numbers": [1, 2, 3]}
    paths["small"] = build(small / "small.gguf", keys, llama_tensors(2, **_SMALL))
    paths["small-quantised"] = build(
        small / "quantised.gguf", llama_keys(1, embd=32), llama_tensors(1, embd=32), types={"output.weight": "q8_0"}
    )
    paths["small-set"] = t0_split(small, (2, 37))[0]
    found = {}
    for name, path in paths.items():
        if path.is_file():
            with path.open("rb") as file:
                content = file.read(LARGEST)
            found[name] = (b"\0" if path.stat().st_size <= LARGEST else b"\1") + content[: LARGEST - 1]
    return found


def test_each_seed_is_borne(tmp_path: Path) -> None:
    """Every file of the corpus goes all the way with nothing but values and typed errors."""
    (tmp_path / "target").mkdir()
    target = Target(tmp_path / "target")
    found = seeds(tmp_path)
    assert len(found) > 150
    for data in found.values():
        for wishes in range(4):
            target(bytes([wishes]) + data[1:])


def test_small_models_are_planned_by_the_target(tmp_path: Path) -> None:
    """The search begins at models that are good, or it would never see a plan."""
    (tmp_path / "target").mkdir()
    target = Target(tmp_path / "target")
    found = seeds(tmp_path)
    for name, kinds in (("small", {"f32"}), ("small-quantised", {"f32", "q8_0"})):
        target(found[name])
        model = read_model_file(tmp_path / "target" / "model.gguf")
        assert kinds == {tensor.type.name for tensor in model.tensors} <= BY_NAME.keys()


@pytest.mark.fuzz
def test_inputs_bred_by_coverage_find_no_fault(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Neither a raw exception, nor an input that takes seconds, nor growing memory is found within the bounds."""
    pytest.importorskip("atheris", reason="atheris is not installed: it comes with the extra `fuzz`")
    for name in ("seeds", "target", "found"):
        (tmp_path / name).mkdir()
    for name, data in seeds(tmp_path).items():
        (tmp_path / "seeds" / name).write_bytes(data)
    options = {
        "runs": RUNS,
        "max_total_time": SECONDS,
        "max_len": LARGEST,
        "timeout": 2,
        "rss_limit_mb": 700,
        "seed": 1,
        "artifact_prefix": f"{tmp_path}/found/",
        "print_final_stats": 1,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.harness", str(tmp_path / "target"), str(tmp_path / "seeds")]
        + [f"-{name}={value}" for name, value in options.items()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS + 120,
        check=False,
    )
    faults = {path.name: path.read_bytes().hex() for path in (tmp_path / "found").iterdir()}
    assert (0, {}) == (done.returncode, faults), done.stderr[-5000:]
    said = {name: re.findall(rf"{name}: +(\d+)", done.stderr) for name in ("cov", "number_of_executed_units")}
    record_property("coverage", said["cov"][-1])
    record_property("inputs", said["number_of_executed_units"][-1])
    print(
        f"\n{said['number_of_executed_units'][-1]} inputs in {SECONDS} s, coverage {said['cov'][0]} → {said['cov'][-1]}"
    )
    assert int(said["number_of_executed_units"][-1]) > 1000
