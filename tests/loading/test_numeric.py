"""The numeric proof: partial sums over slices agree with the whole, and do not where a plan is spoilt."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.understanding import Understanding, understand
from app.loading.numeric import TOLERANCE, NumericProof, layers_to_prove, numeric_proofs
from app.modelfile.reader import read_model_file
from app.modelfile.source import open_source
from app.planner.pipeline import plan_split
from app.planner.plan import PlannedSegment, PlannedTensor, SplitMode, SplitPlan
from tests.builders import tp
from tests.examples import example_file
from tests.oracle import targets, the_catalog
from tests.real_models import real_model_path


def _understand(path: Path) -> Understanding:
    return understand(read_model_file(path), the_catalog())


def _plan(understanding: Understanding, n_devices: int, ratios: list[float] | None = None) -> SplitPlan:
    return plan_split(understanding, targets(SplitMode.TENSOR, n_devices, ratios))


def _prove(
    understanding: Understanding, plan: SplitPlan, layers: Sequence[int] | None = None, seed: int = 0
) -> list[NumericProof]:
    with ExitStack() as files:
        sources = [files.enter_context(open_source(shard)) for shard in understanding.model.shards]
        chosen = layers_to_prove(understanding) if layers is None else layers
        return list(numeric_proofs(plan, understanding, sources, chosen, seed))


def _moved(plan: SplitPlan, name: str, step: int) -> SplitPlan:
    def change() -> Iterator[PlannedTensor]:
        for tensor in plan.tensors:
            if tensor.name != name:
                yield tensor
                continue
            (part,) = tensor.segments
            first, second, *rest = part.extents
            yield tensor._replace(segments=(PlannedSegment((first + step, second - step, *rest), part.repeats),))

    return replace(plan, tensors=tuple(change()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m.gguf", "gemma3-270m.gguf"])
@pytest.mark.parametrize("ratios", [None, [1.0, 3.0, 2.0]])
@pytest.mark.parametrize("n_devices", [2, 3])
def test_real_models_agree(name: str, n_devices: int, ratios: list[float] | None) -> None:
    """With a real model's weights, attention and feed-forward of a layer of each kind agree whole and split."""
    understanding = _understand(real_model_path(name))
    proofs = _prove(understanding, _plan(understanding, n_devices, ratios[:n_devices] if ratios else None))
    assert {"attention", "feed_forward"} == {proof.seam for proof in proofs}
    assert all(proof.holds and proof.error <= TOLERANCE for proof in proofs)


@pytest.mark.parametrize(
    ("architecture", "seams"),
    [
        ("qwen3moe", {"attention", "experts"}),
        ("gpt-oss", {"attention", "experts"}),
        ("phi3", {"attention", "feed_forward"}),
        ("mimo2", {"attention", "experts"}),
    ],
)
@pytest.mark.parametrize("n_devices", [2, 3])
def test_seeded_small_models_agree(tmp_path: Path, architecture: str, seams: set[str], n_devices: int) -> None:
    """Experts with biases, sinks, norms per head, fused gate and up, heads of two sizes: partial sums agree."""
    also = {"phi3": ("attn_qkv",), "mimo2": ("ffn_gate_inp", "ffn_gate_exps", "ffn_down_exps", "ffn_up_exps")}
    path = example_file(the_catalog().get(architecture), tmp_path / "m.gguf", also.get(architecture, ()))
    understanding = _understand(path)
    proofs = _prove(understanding, _plan(understanding, n_devices))
    assert seams <= {proof.seam for proof in proofs}
    assert all(proof.holds for proof in proofs), proofs


@pytest.mark.parametrize(
    ("name", "step", "seam"),
    [
        ("blk.0.attn_q.weight", 64, "attention"),
        ("blk.0.attn_q.weight", 32, "attention"),
        ("blk.0.attn_k.weight", 64, "attention"),
        ("blk.0.attn_output.weight", 64, "attention"),
        ("blk.0.ffn_up.weight", 128, "feed_forward"),
        ("blk.0.ffn_down.weight", -128, "feed_forward"),
    ],
)
def test_a_spoilt_plan_does_not_agree(tmp_path: Path, name: str, step: int, seam: str) -> None:
    """A boundary moved on one side of a seam breaks that seam's proof and no other's."""
    understanding = _understand(tp(tmp_path / "m.gguf", 8, 512, 1))
    plan = _plan(understanding, 2)
    assert all(proof.holds for proof in _prove(understanding, plan))
    spoilt = {proof.seam: proof.holds for proof in _prove(understanding, _moved(plan, name, step))}
    assert {seam: False, ({"attention", "feed_forward"} - {seam}).pop(): True} == spoilt


def test_slices_in_another_order_do_not_agree(tmp_path: Path) -> None:
    """Shares of equal size that hold other elements are caught by the sums, where counting would not."""
    understanding = _understand(tp(tmp_path / "m.gguf", 8, 512, 1))
    plan = _plan(understanding, 2)

    def halves(tensor: PlannedTensor) -> PlannedTensor:
        if tensor.name != "blk.0.ffn_down.weight":
            return tensor
        return tensor._replace(segments=(PlannedSegment((128, 128), 2),))

    spoilt = replace(plan, tensors=tuple(halves(tensor) for tensor in plan.tensors))
    (proof,) = [proof for proof in _prove(understanding, spoilt) if proof.seam == "feed_forward"]
    assert not proof.holds
    assert proof.error > 0.1


def test_activations_are_seeded(tmp_path: Path) -> None:
    """The same seed gives the same numbers, another seed others."""
    understanding = _understand(tp(tmp_path / "m.gguf", 8, 512, 1))
    plan = _plan(understanding, 2)
    assert _prove(understanding, plan, seed=1) == _prove(understanding, plan, seed=1)
    assert _prove(understanding, plan, seed=1) != _prove(understanding, plan, seed=2)


def test_a_layer_of_each_kind_is_proved(tmp_path: Path) -> None:
    """Layers that are cut alike are proved once: the first of each kind, and the last."""
    path = example_file(the_catalog().get("gemma3"), tmp_path / "m.gguf")
    assert (0, 5, 6) == layers_to_prove(_understand(path))
