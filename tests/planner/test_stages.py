"""The stages alone: each is a pure function that can be asked without the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures import roles
from app.architectures.split import NO_OVERRIDES, PolicyRule, SplitOverrides
from app.architectures.understanding import Understanding, understand
from app.errors import PlanError
from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.modelfile.types import TensorInfo
from app.planner.classification import Peers, classify, peers_by_layer
from app.planner.granularity import granulate
from app.planner.pipeline import plan_split
from app.planner.plan import Classified, PlannedTensor, Segment, SplitMode, SplitPlan
from app.planner.policy import decide_policy
from app.planner.rotation import Rotations
from app.planner.segmentation import SplitContext, segment
from tests.builders import t0, tp
from tests.oracle import targets, the_catalog


def _understand(path: Path) -> Understanding:
    return understand(read_model_file(path), the_catalog())


def _info(name: str, shape: tuple[int, ...], kind: str = "f32") -> TensorInfo:
    return TensorInfo(name=name, type=BY_NAME[kind], shape=shape, shard=0, offset=0, nbytes=0)


def _plan(path: Path, n_devices: int, ratios: list[float] | None = None) -> SplitPlan:
    return plan_split(_understand(path), targets(SplitMode.TENSOR, n_devices, ratios))


def _tensor(plan: SplitPlan, name: str) -> PlannedTensor:
    return next(tensor for tensor in plan.tensors if tensor.name == name)


def _extents(plan: SplitPlan, name: str) -> list[tuple[int, ...]]:
    return [part.extents for part in _tensor(plan, name).segments]


def test_classification_keeps_the_manifests_order_and_marks_copies(tmp_path: Path) -> None:
    """Stage 1 gives each tensor its role and layer, and a tied output a second place of its own."""
    understanding = _understand(t0(tmp_path / "tied.gguf", drop={"output.weight"}))
    classified = classify(understanding.comparison)
    assert [item.role for item in classified[:3]] == [roles.TOKEN_EMBD, roles.OUTPUT_NORM, roles.OUTPUT_TIED]
    assert [item.copy for item in classified[:3]] == [False, False, True]
    assert {item.layer for item in classified} == {None, 0, 1}


def test_policy_anchors_attention_at_its_output_projection() -> None:
    """Q is cut along its rows and limited by the output projection, not by its own type."""
    query, out = _info("blk.0.attn_q.weight", (64, 64)), _info("blk.0.attn_output.weight", (64, 64), "q4_K")
    peers = Peers({roles.ATTN_Q: query, roles.ATTN_OUT: out})
    policy = decide_policy(Classified(tensor=query, role=roles.ATTN_Q, layer=0), peers, NO_OVERRIDES, rotation=1)
    assert (1, out, 1) == (policy.axis, policy.anchor, policy.rotation)


def test_policy_without_an_anchor_is_refused() -> None:
    """A tensor whose anchor the layer lacks cannot be split, and the refusal names both."""
    up = _info("blk.0.ffn_up.weight", (64, 128))
    with pytest.raises(PlanError, match=r"blk\.0\.ffn_down\.weight") as refused:
        decide_policy(
            Classified(tensor=up, role=roles.FFN_UP, layer=0), Peers({roles.FFN_UP: up}), NO_OVERRIDES, rotation=0
        )
    assert ("unsupported_split", "blk.0.ffn_up.weight") == (refused.value.code, refused.value.facts["tensor"])


def test_exceptions_come_before_the_standard_table(tmp_path: Path) -> None:
    """What an architecture says about a role replaces every stage's standard rule for it."""
    understanding = _understand(t0(tmp_path / "m.gguf"))
    own = SplitOverrides(
        policy={roles.ATTN_Q: PolicyRule(axis="mirrored", why="ours")},
        segments={roles.FFN_UP: lambda cut: ((cut.extent // 2, 2),)},
        granularity={roles.FFN_UP: lambda _cut: (16,)},
        why={roles.FFN_UP: "two halves"},
    )
    changed = replace(understanding, architecture=replace(understanding.architecture, split=own))
    plan = plan_split(changed, targets(SplitMode.TENSOR, 2))
    assert (_tensor(plan, "blk.0.attn_q.weight").axis, _tensor(plan, "blk.0.attn_q.weight").why.policy) == (
        "mirrored",
        "ours",
    )
    up = _tensor(plan, "blk.0.ffn_up.weight")
    assert (up.granularity, [(part.extents, part.repeats) for part in up.segments]) == ((16,), [((32, 32), 2)])
    assert up.why.segmentation == "two halves"


def test_runs_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    """A fused tensor whose parts do not make its extent is refused, naming the tensor and both sums."""
    understanding = _understand(t0(tmp_path / "m.gguf"))
    fused = Classified(tensor=_info("blk.0.attn_qkv.weight", (64, 100)), role=roles.ATTN_QKV, layer=0)
    context = SplitContext(
        tensor=fused,
        axis=1,
        extent=100,
        block_size=1,
        n_devices=2,
        hparams=understanding.hparams,
        capabilities=understanding.architecture.capabilities,
    )
    with pytest.raises(PlanError, match="100 elements") as refused:
        segment(context, NO_OVERRIDES)
    assert (128, 100) == (refused.value.facts["expected"], refused.value.facts["found"])


def test_granularity_needs_heads(tmp_path: Path) -> None:
    """A layer without key heads has nothing to be cut by: refused, where the reference divides by zero."""
    understanding = _understand(t0(tmp_path / "m.gguf"))
    context = SplitContext(
        tensor=Classified(tensor=_info("blk.1.ffn_up.weight", (64, 128)), role=roles.FFN_UP, layer=1),
        axis=1,
        extent=128,
        block_size=1,
        n_devices=2,
        hparams=replace(understanding.hparams, n_head_kv=(2, 0)),
        capabilities=understanding.architecture.capabilities,
    )
    with pytest.raises(PlanError, match="layer 1"):
        granulate(context, (Segment(128, 1),), NO_OVERRIDES)


def test_layers_of_one_kind_take_turns(tmp_path: Path) -> None:
    """Rotation counts earlier layers of the same kind; model-level tensors turn with the trunk's length."""
    hparams = replace(
        _understand(t0(tmp_path / "m.gguf", 4)).hparams,
        is_swa=(True, True, False, True),
        n_layer_nextn=1,
    )
    rotations = Rotations(hparams, 2)
    assert [0, 1, 0, 0] == [rotations.of(layer) for layer in range(4)]
    assert 1 == rotations.of(None)


def test_peers_are_found_by_role_within_a_layer(tmp_path: Path) -> None:
    """Each layer has peers of its own, and the first role of a list that exists is the answer."""
    peers = peers_by_layer(classify(_understand(t0(tmp_path / "m.gguf")).comparison))
    found = peers[1].first((roles.SSM_OUT, roles.ATTN_OUT))
    assert found is not None
    assert found.name == "blk.1.attn_output.weight"


@pytest.mark.parametrize(
    ("kind", "expected", "turned"),
    [("f16", (128, 192, 192), (192, 128, 192)), ("q4_K", (0, 256, 256), (256, 0, 256))],
)
def test_q_k_v_and_output_are_cut_at_the_same_heads(
    tmp_path: Path, kind: str, expected: tuple[int, ...], turned: tuple[int, ...]
) -> None:
    """The output projection's type limits all four, whatever the others' types are."""
    changed = {f"blk.{layer}.attn_output.weight": kind for layer in range(3)}
    plan = _plan(tp(tmp_path / "m.gguf", 8, 512, 3, types=changed, seed=None), 3)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        assert [expected] == _extents(plan, f"blk.0.{name}.weight")
        assert [turned] == _extents(plan, f"blk.1.{name}.weight")


@pytest.mark.parametrize(
    ("n_ff", "kind", "n_devices", "first", "second"),
    [
        (384, "f32", 2, (128, 256), (256, 128)),
        (640, "f32", 3, (128, 256, 256), (256, 128, 256)),
        (512, "f16", 3, (128, 128, 256), (256, 128, 128)),
        (512, "q4_K", 3, (0, 256, 256), (256, 0, 256)),
    ],
)
def test_feed_forward_is_cut_in_steps_of_the_down_projection(
    tmp_path: Path, n_ff: int, kind: str, n_devices: int, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """Gate, up and down are cut at whole blocks of the down projection and at 128 at least; zero shares are legal."""
    changed = {f"blk.{layer}.ffn_down.weight": kind for layer in range(2)}
    plan = _plan(tp(tmp_path / "m.gguf", 2, n_ff, 2, types=changed, seed=None), n_devices)
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        assert [first] == _extents(plan, f"blk.0.{name}.weight")
        assert [second] == _extents(plan, f"blk.1.{name}.weight")


def test_ratios_skip_a_device_and_mirror_the_norms(tmp_path: Path) -> None:
    """A ratio of zero leaves a device without a share of what is cut, and with all of what is mirrored."""
    plan = _plan(tp(tmp_path / "m.gguf", 4, 512, 2, seed=None), 3, [1, 0, 1])
    for layer in range(2):
        assert [(256, 0, 256)] == _extents(plan, f"blk.{layer}.attn_q.weight")
        assert [(128, 0, 128)] == _extents(plan, f"blk.{layer}.attn_k.weight")
        assert [(256, 0, 256)] == _extents(plan, f"blk.{layer}.ffn_up.weight")
        assert (256, 256, 256) == _tensor(plan, f"blk.{layer}.attn_norm.weight").bytes_per_device


def test_one_device_keeps_its_axes(tmp_path: Path) -> None:
    """Over one device tensors are planned like over many: cut along their axis, whole."""
    plan = _plan(t0(tmp_path / "m.gguf"), 1)
    assert (1, [(64,)]) == (_tensor(plan, "blk.0.attn_q.weight").axis, _extents(plan, "blk.0.attn_q.weight"))


def test_every_tensor_says_why(tmp_path: Path) -> None:
    """Each planned tensor carries a sentence for every decision that was made about it."""
    for tensor in _plan(t0(tmp_path / "m.gguf"), 3).tensors:
        assert tensor.why.policy
        if tensor.axis in (0, 1, 2):
            assert tensor.why.segmentation
            assert tensor.why.granularity
            assert tensor.why.allocation


def test_tied_output_is_mirrored_beside_the_hosts_copy(tmp_path: Path) -> None:
    """A tied output keeps the embedding's name: the host has one for looking up, every device one for the logits."""
    plan = _plan(t0(tmp_path / "m.gguf", 4, drop={"output.weight"}), 2)
    copies = [tensor for tensor in plan.tensors if tensor.name == "token_embd.weight"]
    assert [("host", None, (0, 0)), (None, "mirrored", (8192, 8192))] == [
        (copy.device, copy.axis, copy.bytes_per_device) for copy in copies
    ]


def test_same_input_same_plan(tmp_path: Path) -> None:
    """Planning is a function: the same file and request give an equal plan."""
    path = t0(tmp_path / "m.gguf")
    assert _plan(path, 3, [1, 2, 4]) == _plan(path, 3, [1, 2, 4])
