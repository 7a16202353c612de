"""The audit: holds on every legal plan, names the reference's own faults, catches every kind of spoilt plan."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.descriptor import Architecture
from app.architectures.memory import MemoryRequest
from app.architectures.understanding import Understanding, understand
from app.errors import PlanError
from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.planner.audit import Proof, audit, first_failure
from app.planner.pipeline import plan_split
from app.planner.plan import DeviceTotal, PlannedSegment, PlannedTensor, SplitMode, SplitPlan
from tests.builders import tp
from tests.examples import example_file
from tests.faults import REFERENCE_FAULTS
from tests.oracle import GROUPS, Models, records, targets, the_catalog

SKEW = [1.0, 3.0, 5.0, 2.0, 4.0, 1.0, 3.0, 5.0]


def _failures(plan: SplitPlan, understanding: Understanding) -> set[str]:
    return {proof.proof for proof in audit(plan, understanding) if not proof.holds}


def _plan(
    understanding: Understanding, n_devices: int, *, skewed: bool = False, context: MemoryRequest | None = None
) -> SplitPlan:
    split = targets(SplitMode.TENSOR, n_devices, SKEW[:n_devices] if skewed else None)
    return plan_split(understanding, replace(split, context=context))


@pytest.mark.parametrize("group", GROUPS)
def test_recorded_models_pass_but_for_the_references_faults(oracle_dir: Path, tmp_path: Path, group: str) -> None:
    """Over 1 to 8 devices, even and skewed, a plan is legal, or breaks at a seam where the reference's own does.

    With its caches, where the reference could make the context.
    """
    models = Models(oracle_dir, tmp_path)
    faults = set()
    for record in records(oracle_dir, f"facts/{group}"):
        if record["arch"] not in the_catalog() or not record["supports_sm_tensor"]:
            continue
        understanding = models(group, record["file"])
        context = MemoryRequest(n_ctx=record["n_ctx"]) if record["context"] else None
        for n_devices in range(1, 9):
            for skewed in (False, True):
                try:
                    plan = _plan(understanding, n_devices, skewed=skewed, context=context)
                except PlanError as error:
                    assert error.code == "unsupported_split"  # noqa: PT017 - a refusal is an answer here
                    continue
                faults |= {(record["arch"], proof) for proof in _failures(plan, understanding)}
    assert faults <= REFERENCE_FAULTS


@pytest.mark.parametrize(
    "architecture",
    [architecture for architecture in the_catalog() if architecture.refused is None],
    ids=lambda architecture: architecture.name,
)
def test_every_architectures_example_passes(architecture: Architecture, tmp_path: Path) -> None:
    """The plans of an architecture's own example are legal in every mode it may be split in."""
    understanding = understand(read_model_file(example_file(architecture, tmp_path / "m.gguf")), the_catalog())
    for n_devices in (1, 2, 3, 5, 8):
        assert set() == _failures(plan_split(understanding, targets(SplitMode.LAYER, n_devices)), understanding)
        if architecture.capabilities.tensor_split:
            for skewed in (False, True):
                found = {
                    (architecture.name, proof)
                    for proof in _failures(_plan(understanding, n_devices, skewed=skewed), understanding)
                }
                assert found <= REFERENCE_FAULTS


def test_the_references_answers_break_where_q_carries_a_gate(oracle_dir: Path, tmp_path: Path) -> None:
    """Models whose Q carries a gate, cut as recorded, have Q and output projection at different heads."""
    models = Models(oracle_dir, tmp_path)
    understanding = models("toy_q", "qwen35-dense-q.gguf")
    failed = first_failure(audit(_plan(understanding, 2), understanding))
    assert failed == Proof(
        proof="attention_lockstep",
        seam="attention of layer 1",
        holds=False,
        detail="Q blk.1.attn_q.weight has 1/1 heads, blk.1.attn_output.weight 0/2",
        checked=1,
        tensor="blk.1.attn_q.weight",
    )


@pytest.fixture
def understanding(tmp_path: Path) -> Understanding:
    return understand(read_model_file(tp(tmp_path / "m.gguf", 4, 512, 2, seed=None)), the_catalog())


def _change(plan: SplitPlan, name: str, change: Callable[[PlannedTensor], PlannedTensor | None]) -> SplitPlan:
    changed = (change(tensor) if tensor.name == name else tensor for tensor in plan.tensors)
    return replace(plan, tensors=tuple(tensor for tensor in changed if tensor is not None))


def _moved(step: int) -> Callable[[PlannedTensor], PlannedTensor]:
    """Move a boundary between the first two devices, with bytes to match."""

    def change(tensor: PlannedTensor) -> PlannedTensor:
        (part,) = tensor.segments
        first, second, *rest = part.extents
        extents = (first + step, second - step, *rest)
        per_element = tensor.nbytes // sum(part.extents)
        return tensor._replace(
            segments=(PlannedSegment(extents, part.repeats),),
            bytes_per_device=tuple(extent * per_element for extent in extents),
        )

    return change


def _with_extents(*extents: int) -> Callable[[PlannedTensor], PlannedTensor]:
    return lambda tensor: tensor._replace(segments=(PlannedSegment(extents, 1),))


def _mirrored(tensor: PlannedTensor) -> PlannedTensor:
    return tensor._replace(
        axis="mirrored", segments=(), bytes_per_device=(tensor.nbytes,) * len(tensor.bytes_per_device)
    )


def _torn(tensor: PlannedTensor) -> PlannedTensor:
    return _moved(32)(tensor._replace(type=BY_NAME["q4_K"]))


SPOILT: dict[str, tuple[str, Callable[[PlannedTensor], PlannedTensor | None], str]] = {
    "an element is lost": ("blk.0.attn_q.weight", _with_extents(255, 256), "conservation"),
    "an element is cut twice": ("blk.0.ffn_up.weight", _with_extents(257, 256), "conservation"),
    "a share is negative": ("blk.0.ffn_up.weight", _with_extents(-128, 640), "conservation"),
    "bytes are forgotten": (
        "blk.0.attn_k.weight",
        lambda tensor: tensor._replace(bytes_per_device=(0, tensor.bytes_per_device[1])),
        "conservation",
    ),
    "bytes are swapped": (
        "output.weight",
        lambda tensor: _moved(4)(tensor)._replace(
            bytes_per_device=(tensor.bytes_per_device[0] - 1024, tensor.bytes_per_device[1] + 1024)
        ),
        "conservation",
    ),
    "a mirrored tensor is missing on a device": (
        "blk.0.attn_norm.weight",
        lambda tensor: tensor._replace(bytes_per_device=(tensor.nbytes, 0)),
        "conservation",
    ),
    "a tensor has no place": ("blk.1.ffn_norm.weight", lambda _tensor: None, "placement"),
    "Q is cut inside a head": ("blk.0.attn_q.weight", _moved(32), "attention_lockstep"),
    "Q and the output are cut at different heads": ("blk.0.attn_q.weight", _moved(64), "attention_lockstep"),
    "K is cut at other heads": ("blk.1.attn_k.weight", _moved(64), "attention_lockstep"),
    "V is cut inside a head": ("blk.1.attn_v.weight", _moved(32), "attention_lockstep"),
    "the output projection is mirrored under cut heads": (
        "blk.0.attn_output.weight",
        _mirrored,
        "attention_lockstep",
    ),
    "up and down are cut at different units": ("blk.0.ffn_up.weight", _moved(128), "feed_forward_lockstep"),
    "gate and down are cut at different units": ("blk.1.ffn_gate.weight", _moved(-128), "feed_forward_lockstep"),
    "down is mirrored under cut units": ("blk.0.ffn_down.weight", _mirrored, "feed_forward_lockstep"),
    "a quant block is torn": ("blk.0.ffn_down.weight", _torn, "block_alignment"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_plan_is_caught(understanding: Understanding, kind: str) -> None:
    """Each kind of spoilt plan fails the proof that is about it, and names the tensor."""
    name, change, proof = SPOILT[kind]
    plan = _plan(understanding, 2)
    assert set() == _failures(plan, understanding)
    failed = [entry for entry in audit(_change(plan, name, change), understanding) if not entry.holds]
    assert proof in {entry.proof for entry in failed}
    assert any(name in (entry.tensor or "") or name in entry.detail for entry in failed)


def test_a_tensor_placed_twice_is_caught(understanding: Understanding) -> None:
    """One tensor twice in one place is memory nobody planned."""
    plan = _plan(understanding, 2)
    twice = replace(plan, tensors=(*plan.tensors, plan.tensors[-1]))
    assert {"placement", "memory_sums"} == _failures(twice, understanding)


def test_wrong_totals_are_caught(understanding: Understanding) -> None:
    """Totals that are not the sum of the entries are caught, device by device."""
    plan = _plan(understanding, 2)
    first, *rest = plan.totals
    wrong = DeviceTotal(
        name=first.name, weights_bytes=first.weights_bytes - 1, cache_bytes=0, free_bytes=first.free_bytes
    )
    assert {"memory_sums"} == _failures(replace(plan, totals=(wrong, *rest)), understanding)


def test_parts_of_a_fused_tensor_are_caught(tmp_path: Path) -> None:
    """A fused tensor cut as if it were one projection has no run that ends at its seams."""
    path = example_file(the_catalog().get("phi3"), tmp_path / "m.gguf")
    understanding = understand(read_model_file(path), the_catalog())
    plan = _plan(understanding, 2)
    half = lambda tensor: tensor._replace(segments=(PlannedSegment((256, 256), 1),))  # noqa: E731
    spoilt = _change(plan, "blk.0.ffn_up.weight", half)
    assert {"fused_parts", "feed_forward_lockstep"} == _failures(spoilt, understanding)


def test_a_legal_plan_shows_its_numbers(understanding: Understanding) -> None:
    """Each proof that holds is one entry, with how much it looked at and one seam's numbers."""
    proofs = {proof.proof: proof for proof in audit(_plan(understanding, 2), understanding)}
    assert proofs["attention_lockstep"].checked == 2
    assert proofs["attention_lockstep"].detail == "attention of layer 0: output, Q, K, V all have 4/4 heads"
    assert proofs["feed_forward_lockstep"].detail.endswith("all have 256/256 hidden units")


@pytest.mark.parametrize(
    ("cache", "proof"), [("cache_k_l0", "attention_lockstep"), ("cache_v_l0", "attention_lockstep")]
)
def test_a_cache_cut_at_other_heads_is_caught(understanding: Understanding, cache: str, proof: str) -> None:
    """Keys and values are cached where their heads are: a cache with other heads fails the seam."""
    plan = _plan(understanding, 2, context=MemoryRequest(n_ctx=256))
    assert set() == _failures(plan, understanding)
    moved = (_moved(64)(entry) if entry.name == cache else entry for entry in plan.caches)
    assert {proof} <= _failures(replace(plan, caches=tuple(moved)), understanding)


def test_states_of_linear_attention_are_proved(oracle_dir: Path, tmp_path: Path) -> None:
    """Recurrent states and convolution histories are cut with the state heads they belong to."""
    understanding = Models(oracle_dir, tmp_path)("real", "qwen3.5-27b.gguf")
    plan = _plan(understanding, 2, context=MemoryRequest(n_ctx=256))
    (proof,) = [entry for entry in audit(plan, understanding) if entry.proof == "state_lockstep"]
    assert proof.holds
    assert "state" in proof.detail
    spoilt = tuple(
        entry._replace(segments=(PlannedSegment((0, sum(entry.segments[0].extents)), entry.segments[0].repeats),))
        if entry.role == "cache_s"
        else entry
        for entry in plan.caches
    )
    assert "state_lockstep" in _failures(replace(plan, caches=spoilt), understanding)
