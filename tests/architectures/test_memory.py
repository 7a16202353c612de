"""What a context comes to: lengths, types, and an architecture that brings a cache of its own."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.architectures.attention_memory import shared_by_later_layers, standard_attention
from app.architectures.cache_roles import CACHE_K
from app.architectures.hparams import HParams, SwaType
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.recurrent_memory import hybrid
from app.architectures.registry import load_catalog
from app.architectures.understanding import Understanding, understand
from app.errors import PlanError
from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.planner.pipeline import plan_split
from app.planner.plan import PlannedTensor, SplitMode
from tests.builders import t0
from tests.examples import example_file
from tests.oracle import targets, the_catalog

Q8 = BY_NAME["q8_0"]


@pytest.fixture
def model(tmp_path: Path) -> Understanding:
    """Two layers of four query heads and two key heads of 16, trained on 128 tokens."""
    return understand(read_model_file(t0(tmp_path / "m.gguf")), the_catalog())


def _caches(model: Understanding, request: MemoryRequest, **changed: object) -> tuple[CacheTensor, ...]:
    return model.architecture.caches(replace(model.hparams, **changed), request)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n_ctx", "n_seq_max", "cells"),
    [(0, 1, 256), (1, 1, 256), (256, 1, 256), (257, 1, 512), (4096, 4, 1024), (1000, 3, 512), (1, 256, 256)],
)
def test_a_sequence_gets_its_share_of_the_context_in_whole_steps(
    model: Understanding, n_ctx: int, n_seq_max: int, cells: int
) -> None:
    """Each sequence has a stream of its own, as long as its share of the context, rounded up; 0 is the model's own."""
    first = _caches(model, MemoryRequest(n_ctx=n_ctx, n_seq_max=n_seq_max))[0]
    assert ("cache_k_l0", (32, cells, n_seq_max), 64 * cells * n_seq_max) == (
        first.name,
        (*first.shape, 1)[:3],
        first.nbytes,
    )


def test_a_context_of_no_length_is_refused(model: Understanding) -> None:
    """Where neither the client nor the model names a length there is none to plan for."""
    with pytest.raises(PlanError, match="context") as refused:
        _caches(model, MemoryRequest(), n_ctx_train=0)
    assert "impossible_plan" == refused.value.code


def test_a_window_is_cached_as_a_window_where_that_is_asked_for(model: Understanding) -> None:
    """Windowed layers keep the window and what is computed at once; they come after the layers that see everything."""
    windowed = {"is_swa": (True, False), "swa_type": SwaType.STANDARD, "n_swa": 100}
    whole = _caches(model, MemoryRequest(n_ctx=4096), **windowed)
    small = _caches(model, MemoryRequest(n_ctx=4096, swa_full=False), **windowed)
    assert [1, 1, 0, 0] == [cache.layer for cache in whole]
    assert [4096, 4096, 4096, 4096] == [cache.shape[1] for cache in whole]
    assert [4096, 4096, 768, 768] == [cache.shape[1] for cache in small]


def test_without_flash_attention_values_are_as_wide_as_the_widest(model: Understanding) -> None:
    """Values are then kept transposed, which needs one width for all layers."""
    uneven = {"n_head_kv": (2, 1)}
    fused = _caches(model, MemoryRequest(), **uneven)
    plain = _caches(model, MemoryRequest(flash_attention=False), **uneven)
    assert [32, 32, 16, 16] == [cache.shape[0] for cache in fused]
    assert [32, 32, 16, 32] == [cache.shape[0] for cache in plain]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (MemoryRequest(type_k=Q8), "context.type_k"),
        (MemoryRequest(type_v=Q8), "context.type_v"),
        (MemoryRequest(type_v=BY_NAME["q4_0"], flash_attention=False), "context.type_v"),
    ],
)
def test_c39_quantised_caches_must_hold_whole_heads(model: Understanding, request_: MemoryRequest, field: str) -> None:
    """A type whose blocks do not divide a head is refused, and so are quantised values without flash attention."""
    with pytest.raises(PlanError) as refused:
        _caches(model, request_)
    assert field == refused.value.facts["field"]


def test_quantised_keys_need_whole_rows_at_least(model: Understanding) -> None:
    """Without flash attention a head may end within a block, a row may not."""
    halves = MemoryRequest(type_k=Q8, flash_attention=False)
    assert (32, Q8) == (_caches(model, halves)[0].shape[0], _caches(model, halves)[0].type)
    with pytest.raises(PlanError) as refused:
        _caches(model, halves, n_head_kv=(2, 1))
    assert "cache_k_l1" == refused.value.facts["tensor"]


def test_latent_attention_caches_one_tensor_of_one_type(model: Understanding) -> None:
    """Keys and values expand from one vector: there is no second cache, and no second type."""
    latent = {"n_embd_head_k_mla": 16, "n_embd_head_v_mla": 16}
    assert ["cache_k_l0", "cache_k_l1"] == [cache.name for cache in _caches(model, MemoryRequest(), **latent)]
    with pytest.raises(PlanError, match="at once"):
        _caches(model, MemoryRequest(type_k=BY_NAME["bf16"]), **latent)


def test_layers_without_keys_need_a_layer_of_their_kind_to_share(model: Understanding) -> None:
    """Sharing across kinds, or with nobody, is refused: there would be nothing to attend to."""
    hp: HParams = replace(
        model.hparams, n_layer_all=4, is_swa=(True, False, True, False), swa_type=SwaType.STANDARD, n_swa=8,
        n_head_kv=(2,) * 4, n_layer_kv_from_start=2,
    )  # fmt: skip
    assert [1, 1, 0, 0] == [cache.layer for cache in shared_by_later_layers(hp, MemoryRequest())]
    for wrong in (replace(hp, n_layer_kv_from_start=1), replace(hp, is_swa=(False, True, False, True))):
        with pytest.raises(PlanError) as refused:
            list(shared_by_later_layers(wrong, MemoryRequest()))
        assert "impossible_plan" == refused.value.code


@pytest.mark.parametrize("flags", [(True, False), (False, False)])
def test_a_window_and_its_layers_must_agree(model: Understanding, flags: tuple[bool, ...]) -> None:
    """A window that no layer looks through, or the reverse, is a contradiction and no plan."""
    kind = SwaType.NONE if any(flags) else SwaType.STANDARD
    with pytest.raises(PlanError):
        standard_attention(replace(model.hparams, is_swa=flags, swa_type=kind), MemoryRequest())


def test_recurrent_states_do_not_grow_with_the_context(model: Understanding) -> None:
    """A recurrent layer keeps a row per sequence in f32, whatever the length and the types of keys and values."""
    hp = replace(model.hparams, is_recr=(True, False), ssm_d_conv=4, ssm_d_inner=64, ssm_d_state=16)
    request = MemoryRequest(n_ctx=9999, n_seq_max=3, type_k=BY_NAME["bf16"], type_v=BY_NAME["bf16"])
    caches = list(hybrid(hp, request))
    assert ["cache_k_l1", "cache_v_l1", "cache_r_l0", "cache_s_l0"] == [cache.name for cache in caches]
    assert [((192, 3), "f32"), ((1024, 3), "f32")] == [(cache.shape, cache.type.name) for cache in caches[2:]]


FALCONET = '''"""Falconet: made up for a test. Another value per head and token, and a clock, beside the usual."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import roles
from app.architectures.attention_memory import attention
from app.architectures.cache_roles import cache_role
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.hparams import HParams
from app.architectures.memory import F32, CacheTensor, MemoryRequest, cache
from app.architectures.roles import Op
from app.architectures.split import Cut, PolicyRule, SplitOverrides

CACHE_W = cache_role("cache_w", "cache_w_l{}", Op.MUL_MAT)
CACHE_CLOCK = cache_role("cache_clock", "cache_clock_l{}", Op.ADD)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    yield from attention(hp, request)
    for layer in range(hp.n_layer):
        yield cache(CACHE_W, layer, request.type_v, hp.n_embd_v_gqa(layer), request.cells(hp), request.n_seq_max)
        yield cache(CACHE_CLOCK, layer, F32, 1, request.n_seq_max)


def _whole_heads(cut: Cut) -> tuple[int, ...]:
    return (cut.hparams.n_embd_head_v(cut.layer),)


ARCHITECTURE = replace(
    LLAMA,
    name="falconet",
    memory=_memory,
    split=SplitOverrides(
        policy={CACHE_W: PolicyRule(axis=0, anchors=(roles.ATTN_OUT,), why="one run per head")},
        granularity={CACHE_W: _whole_heads},
    ),
)
'''


def test_an_architecture_with_a_cache_of_its_own_needs_one_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roles, shapes and cuts of new caches all stand in the one file that describes their architecture."""
    package = tmp_path / "catalog_of_one"
    package.mkdir()
    (package / "__init__.py").write_text('"""A catalog made up for a test."""\n')
    (package / "falconet.py").write_text(FALCONET)
    monkeypatch.syspath_prepend(tmp_path)
    catalog = load_catalog(importlib.import_module("catalog_of_one"))
    monkeypatch.delitem(sys.modules, "catalog_of_one.falconet")
    monkeypatch.delitem(sys.modules, "catalog_of_one")
    falconet = catalog.get("falconet")
    model = understand(read_model_file(example_file(falconet, tmp_path / "m.gguf")), catalog)
    request = MemoryRequest(n_ctx=512, n_seq_max=2)

    split = plan_split(model, replace(targets(SplitMode.TENSOR, 2), context=request))
    layers = plan_split(model, replace(targets(SplitMode.LAYER, 2), context=request))
    values, mine = _of(split.caches, "cache_v"), _of(split.caches, "cache_w")
    assert [cache.shape for cache in values] == [cache.shape for cache in mine]
    assert [cache.segments for cache in values] == [cache.segments for cache in mine]
    assert {"mirrored"} == {cache.axis for cache in _of(split.caches, "cache_clock")}
    assert [(2,)] * model.hparams.n_layer == [cache.shape[1:] for cache in _of(split.caches, "cache_clock")]
    homes = {cache.layer: cache.device for cache in _of(layers.caches, str(CACHE_K))}
    assert homes == {cache.layer: cache.device for cache in _of(layers.caches, "cache_w")}
    assert sum(cache.nbytes for cache in layers.caches) == sum(total.cache_bytes for total in layers.totals)


def _of(caches: tuple[PlannedTensor, ...], role: str) -> list[PlannedTensor]:
    return [cache for cache in caches if cache.role == role]
