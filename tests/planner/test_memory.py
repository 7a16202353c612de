"""Caches in a plan: conserved, cut with their heads, counted where they lie, refused where they cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.architectures.memory import MemoryRequest
from app.architectures.understanding import Understanding, understand
from app.errors import PlanError
from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.planner.pipeline import plan_split
from app.planner.plan import Override, PlanDevice, PlannedTensor, SplitMode, SplitPlan
from app.planner.render import plan_json
from tests.builders import build, llama_keys, llama_tensors, t0
from tests.oracle import targets, the_catalog

CONTEXT = MemoryRequest(n_ctx=512)


def _understand(path: Path) -> Understanding:
    return understand(read_model_file(path), the_catalog())


@pytest.fixture
def model(tmp_path: Path) -> Understanding:
    return _understand(t0(tmp_path / "m.gguf", layers=4))


def _plan(model: Understanding, mode: SplitMode, n_devices: int, context: MemoryRequest | None = CONTEXT) -> SplitPlan:
    return plan_split(model, replace(targets(mode, n_devices), context=context))


def _by_role(tensors: tuple[PlannedTensor, ...], role: str) -> dict[int | None, PlannedTensor]:
    return {tensor.layer: tensor for tensor in tensors if tensor.role == role}


@given(
    kv=st.integers(1, 6),
    group=st.integers(1, 4),
    head=st.sampled_from((32, 64, 96)),
    n_devices=st.integers(1, 8),
    ratios=st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=8, max_size=8)),
    kind=st.sampled_from(("f32", "f16", "q8_0", "q4_0")),
    weights=st.sampled_from(("f32", "q8_0")),
    n_seq_max=st.integers(1, 4),
)
def test_caches_are_conserved_and_cut_at_the_heads_of_k_and_v(
    tmp_path_factory: pytest.TempPathFactory,
    kv: int,
    group: int,
    head: int,
    n_devices: int,
    ratios: list[int] | None,
    kind: str,
    weights: str,
    n_seq_max: int,
) -> None:
    """Slices add up to the whole, in blocks as well, and each device caches the heads whose K and V it computes."""
    heads = kv * group
    keys = llama_keys(3, embd=64, heads=heads, kv=kv, head_dim=head)
    specs = llama_tensors(3, embd=64, heads=heads, kv=kv, head_dim=head)
    types = {f"blk.{layer}.attn_output.weight": weights for layer in range(3)}
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    model = _understand(build(path, keys, specs, types=types, seed=None))
    request = MemoryRequest(n_ctx=300, n_seq_max=n_seq_max, type_k=BY_NAME[kind], type_v=BY_NAME[kind])
    shares = [float(ratio) for ratio in ratios[:n_devices]] if ratios else None
    plan = plan_split(model, replace(targets(SplitMode.TENSOR, n_devices, shares), context=request))

    assert 6 == len(plan.caches)
    for cache in plan.caches:
        assert cache.source is None
        assert cache.nbytes == sum(cache.bytes_per_device)
        for extent, nbytes in zip(cache.segments[0].extents, cache.bytes_per_device, strict=True):
            assert 0 == extent % cache.type.block_size
            assert nbytes == cache.type.row_bytes(extent) * cache.nbytes // cache.type.row_bytes(cache.shape[0])
    for cached, weight in (("cache_k", "attn_k"), ("cache_v", "attn_v")):
        cuts = {layer: tensor.segments for layer, tensor in _by_role(plan.tensors, weight).items()}
        assert cuts == {layer: cache.segments for layer, cache in _by_role(plan.caches, cached).items()}
        turns = {layer: tensor.rotation for layer, tensor in _by_role(plan.tensors, weight).items()}
        assert turns == {layer: cache.rotation for layer, cache in _by_role(plan.caches, cached).items()}
    assert sum(cache.nbytes for cache in plan.caches) == sum(total.cache_bytes for total in plan.totals)


@pytest.mark.parametrize("mode", [SplitMode.NONE, SplitMode.LAYER, SplitMode.TENSOR])
def test_a_context_changes_nothing_about_the_weights(model: Understanding, mode: SplitMode) -> None:
    """With and without caches the weights are planned alike; without a context there are no caches."""
    without, with_caches = _plan(model, mode, 3, None), _plan(model, mode, 3)
    assert ((), without.tensors) == (without.caches, with_caches.tensors)
    assert [total.weights_bytes for total in without.totals] == [total.weights_bytes for total in with_caches.totals]
    assert {0} == {total.cache_bytes for total in without.totals}


def test_overrides_move_weights_and_no_caches(model: Understanding) -> None:
    """A cache is used where its layer is computed, even if all of the layer's weights are sent elsewhere."""
    asked = targets(SplitMode.LAYER, 2)
    moved = replace(asked, overrides=(Override(pattern=r"blk\.|cache", device="host"),), context=CONTEXT)
    plan = plan_split(model, moved)
    assert {"host"} == {tensor.device for tensor in plan.tensors if tensor.layer is not None}
    assert [cache.device for cache in plan.caches] == [
        cache.device for cache in plan_split(model, replace(asked, context=CONTEXT)).caches
    ]


def test_caches_of_layers_on_the_host_stay_there_in_tensor_mode(model: Understanding) -> None:
    """What is not offloaded keeps its memory on the host, and the host's total says so."""
    asked = replace(targets(SplitMode.TENSOR, 2, n_gpu_layers=3), context=CONTEXT)
    plan = plan_split(model, asked)
    assert ["host"] * 4 + [None] * 4 == [cache.device for cache in plan.caches]
    host = next(total for total in plan.totals if total.name == "host")
    assert host.cache_bytes == sum(cache.nbytes for cache in plan.caches if cache.device == "host")


def test_caches_count_against_what_is_free(model: Understanding) -> None:
    """A device with room for its weights alone is short by what its caches lack."""
    weights = _plan(model, SplitMode.LAYER, 1, None).totals[0].total_bytes
    tight = PlanDevice(name="D0", kind="gpu", memory_bytes=weights, free_bytes=weights)
    plan = plan_split(model, replace(targets(SplitMode.LAYER, 1), devices=(tight,), context=CONTEXT))
    assert (False, plan.totals[0].cache_bytes) == (plan.fits, plan.totals[0].shortfall_bytes)
    assert plan.totals[0].cache_bytes > 0


def test_a_cache_is_told_like_a_tensor(model: Understanding) -> None:
    """A cache's entry has every field of a tensor's, its reasons among them."""
    answer = plan_json(_plan(model, SplitMode.TENSOR, 2))
    entry = answer["caches"][0]
    assert set(answer["tensors"][0]) == set(entry)
    assert ("cache_k_l0", "f16", [32, 512], "cache_k", 0, 0) == tuple(
        entry[key] for key in ("name", "type", "shape", "role", "layer", "axis")
    )
    assert all(entry["why"][stage] for stage in ("policy", "segmentation", "granularity", "allocation"))


@pytest.mark.parametrize(("n_ctx", "n_seq_max", "warned"), [(0, 1, 0), (128, 1, 0), (256, 2, 0), (129, 1, 1)])
def test_more_context_than_the_model_knows_is_told(
    model: Understanding, n_ctx: int, n_seq_max: int, warned: int
) -> None:
    """Planning longer sequences than the model was trained on is allowed, and said."""
    context = MemoryRequest(n_ctx=n_ctx, n_seq_max=n_seq_max)
    assert warned == len(_plan(model, SplitMode.LAYER, 1, context).warnings)


@pytest.mark.parametrize(
    ("mode", "code"), [(SplitMode.TENSOR, "unsupported_split"), (SplitMode.LAYER, "impossible_plan")]
)
def test_c39_types_that_no_head_fits_are_refused(model: Understanding, mode: SplitMode, code: str) -> None:
    """Quantised keys whose blocks do not divide a head are refused in every mode."""
    with pytest.raises(PlanError) as refused:
        _plan(model, mode, 2, MemoryRequest(type_k=BY_NAME["q8_0"]))
    assert (code, "context.type_k") == (refused.value.code, refused.value.facts["field"])


def test_splitting_by_tensor_needs_flash_attention(model: Understanding) -> None:
    """Without it values are kept transposed, which no device could hold a part of."""
    slow = MemoryRequest(flash_attention=False)
    with pytest.raises(PlanError) as refused:
        _plan(model, SplitMode.TENSOR, 2, slow)
    assert ("unsupported_split", "flash_attention") == (refused.value.code, refused.value.facts["capability"])
    assert 8 == len(_plan(model, SplitMode.LAYER, 2, slow).caches)
