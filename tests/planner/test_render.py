"""A plan as JSON: the contract's fields, and nothing that would change under a client."""

import json
from pathlib import Path

import pytest

from app.architectures.understanding import Understanding, understand
from app.modelfile.reader import read_model_file
from app.planner.audit import audit
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode
from app.planner.render import plan_json
from tests.builders import t0, t0_moe
from tests.oracle import targets, the_catalog

ENTRY = {
    "name",
    "type",
    "shape",
    "bytes",
    "role",
    "op",
    "layer",
    "device",
    "axis",
    "segments",
    "granularity",
    "rotation",
    "bytes_per_device",
    "reduce_after",
    "why",
}


@pytest.fixture
def understanding(tmp_path: Path) -> Understanding:
    return understand(read_model_file(t0(tmp_path / "m.gguf")), the_catalog())


def test_an_entry_has_the_contracts_fields(understanding: Understanding) -> None:
    """Every tensor's entry has exactly the documented fields, and all of it is JSON."""
    plan = plan_split(understanding, targets(SplitMode.TENSOR, 2))
    answer = json.loads(json.dumps(plan_json(plan, audit(plan, understanding))))
    assert {frozenset(ENTRY)} == {frozenset(tensor) for tensor in answer["tensors"]}
    query = next(tensor for tensor in answer["tensors"] if tensor["name"] == "blk.0.attn_q.weight")
    assert query | {"why": None} == {
        "name": "blk.0.attn_q.weight",
        "type": "f32",
        "shape": [64, 64],
        "bytes": 16384,
        "role": "attn_q",
        "op": "MUL_MAT",
        "layer": 0,
        "device": None,
        "axis": 1,
        "segments": [{"extents": [32, 32], "repeats": 1}],
        "granularity": [32],
        "rotation": 0,
        "bytes_per_device": [8192, 8192],
        "reduce_after": None,
        "why": None,
    }
    assert {"policy", "segmentation", "granularity", "allocation"} == set(query["why"])
    assert answer["audit"][0] == {
        "proof": "conservation",
        "seam": "every element of every tensor",
        "holds": True,
        "detail": "token_embd.weight: 8192 bytes",
        "checked": 21,
        "tensor": None,
    }


def test_host_bytes_stand_under_host(understanding: Understanding) -> None:
    """What stays on the host is in no device's column, and in the host's own total."""
    answer = plan_json(plan_split(understanding, targets(SplitMode.TENSOR, 2)))
    embedding = answer["tensors"][0]
    assert ("host", None, [0, 0]) == (embedding["device"], embedding["axis"], embedding["bytes_per_device"])
    assert ["D0", "D1", "host"] == [device["name"] for device in answer["devices"]]
    assert 8192 == answer["devices"][2]["weights_bytes"]


def test_sums_follow_the_cut_columns(understanding: Understanding) -> None:
    """A projection whose columns are cut leaves a float32 result on each device, and says what its sum moves."""
    answer = plan_json(plan_split(understanding, targets(SplitMode.TENSOR, 2)))
    summed = {tensor["name"]: tensor["reduce_after"] for tensor in answer["tensors"] if tensor["reduce_after"]}
    assert {f"blk.{layer}.{name}.weight" for layer in range(2) for name in ("attn_output", "ffn_down")} == set(summed)
    # a model of width 64: 256 bytes a partial result; one comes in, the sum goes out
    assert {"partials": 2, "result_bytes": 256, "bytes_per_token": 512} == summed["blk.0.attn_output.weight"]
    # 128 hidden units cannot be shared in steps of 128: one device has them all, and only sends its result
    assert {"partials": 1, "result_bytes": 256, "bytes_per_token": 256} == summed["blk.0.ffn_down.weight"]


def test_experts_are_summed_once(tmp_path: Path) -> None:
    """However many experts a token uses, its partial result is one."""
    path = t0_moe(tmp_path / "m.gguf", shapes=None)
    plan = plan_split(understand(read_model_file(path), the_catalog()), targets(SplitMode.TENSOR, 2))
    down = next(tensor for tensor in plan.tensors if tensor.role == "ffn_down_exps")
    assert down.reduce_after is not None
    assert ("MUL_MAT_ID", 256) == (down.op.value, down.reduce_after.result_bytes)


@pytest.mark.parametrize("mode", [SplitMode.LAYER, SplitMode.NONE])
def test_nothing_is_summed_where_nothing_is_cut(understanding: Understanding, mode: SplitMode) -> None:
    """Whole tensors leave nothing to be summed, nor does one device that has it all."""
    assert {None} == {tensor.reduce_after for tensor in plan_split(understanding, targets(mode, 3)).tensors}
    alone = plan_split(understanding, targets(SplitMode.TENSOR, 1)).tensors
    assert {None} == {tensor.reduce_after for tensor in alone}
