"""Gemma 4: heads of different size with and without window, V that may be K again, experts beside a dense path."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, mixture, roles
from app.architectures.attention_memory import shared_by_later_layers
from app.architectures.blocks import may, need, tensor
from app.architectures.catalog.gemma import ARCHITECTURE as GEMMA
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_LAYERS, window_as_listed

SHARED_KV_LAYERS = HParam("attention.shared_kv_layers", default=0)
_PER_LAYER = HParam("embedding_length_per_layer_input", required=True)


def require_equal_heads(hp: HParams) -> None:
    """K and V must have heads of one size, in layers with a window and in the first. Raises MetadataError bad_value."""
    for suffix, k, v in (
        ("_swa", hp.n_embd_head_k_swa, hp.n_embd_head_v_swa),
        ("", hp.n_embd_head_k(), hp.n_embd_head_v()),
    ):
        if k != v:
            raise bad_value(hp.arch, f"attention.value_length{suffix}", v, f"{k}, the head size of K")


def _derive(hp: HParams) -> HParams:
    hp = mixture.with_expert_widths(window_as_listed(hp))
    require_equal_heads(hp)
    # more shared layers than there are means that none is shared
    return replace(hp, n_layer_kv_from_start=max(hp.n_layer_all - hp.u32(SHARED_KV_LAYERS.key), -1))


def full_rotary_tables(hp: HParams, n_layer: int) -> dict[int, Expected]:
    """The frequencies that full-attention layers share, by layer: the first has the tensor, the others copies."""
    full = [layer for layer in range(n_layer) if not hp.is_swa[layer]]
    return {
        layer: Expected(
            role=roles.ROPE_FREQS, layer=layer, shape=(hp.n_embd_head_k(layer) // 2,), copy=layer != full[0]
        )
        for layer in full
    }


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    per_layer, tables = hp.u32(_PER_LAYER.key), full_rotary_tables(hp, hp.n_layer)
    yield may(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    yield from blocks.tied(hp, names)
    yield from blocks.embedding(hp)
    if per_layer:
        yield need(roles.PER_LAYER_TOKEN_EMBD, None, per_layer * hp.n_layer, hp.n_vocab)
        yield need(roles.PER_LAYER_MODEL_PROJ, 0, hp.n_embd, per_layer * hp.n_layer)
        yield need(roles.PER_LAYER_PROJ_NORM, 0, per_layer)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    for layer in range(hp.n_layer):
        yield from _attention(hp, names, layer)
        yield may(roles.LAYER_OUT_SCALE, layer, 1)
        if layer in tables:
            yield tables[layer]
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[layer])
        yield need(roles.FFN_POST_NORM, layer, hp.n_embd)
        yield may(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
        if roles.FFN_GATE_INP.tensor_name(layer) in names:
            yield from _experts(hp, names, layer)
        if per_layer:
            yield need(roles.PER_LAYER_INP_GATE, layer, hp.n_embd, per_layer)
            yield need(roles.PER_LAYER_PROJ, layer, per_layer, hp.n_embd)
            yield need(roles.PER_LAYER_POST_NORM, layer, hp.n_embd)


def _attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    n_head_k, fused, has_kv = hp.n_embd_head_k(layer), roles.ATTN_QKV, hp.has_kv(layer)
    n_q, n_k, n_v = n_head_k * hp.n_head[layer], hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield may(fused, layer, hp.n_embd, n_q + n_k + n_v)
    if fused.tensor_name(layer) not in names:
        # without V, K takes its place
        for role, width, required in (
            (roles.ATTN_Q, n_q, True),
            (roles.ATTN_K, n_k, has_kv),
            (roles.ATTN_V, n_v, False),
        ):
            yield Expected(role=role, layer=layer, shape=(hp.n_embd, width), required=required, fused=fused)
    yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
    yield need(roles.ATTN_Q_NORM, layer, n_head_k)
    yield tensor(roles.ATTN_K_NORM, layer, n_head_k, required=has_kv)
    yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)


def _experts(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0]
    yield need(roles.FFN_GATE_INP.scale, layer, hp.n_embd)
    yield from blocks.norms(layer, hp.n_embd, roles.FFN_PRE_NORM_2, roles.FFN_POST_NORM_1, roles.FFN_POST_NORM_2)
    yield from blocks.fused_experts(hp, names, layer, n_ff_exp)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff_exp, hp.n_embd, hp.n_expert)


ARCHITECTURE = Architecture(
    name="gemma4",
    hparams=(
        SWA_LAYERS,
        SHARED_KV_LAYERS,
        FREQ_BASE_SWA,
        mixture.EXPERT_FF,
        replace(SLIDING_WINDOW, required=True),
        RMS_EPSILON,
        _PER_LAYER,
        HParam("attention.key_length_swa", required=True),
        HParam("attention.value_length_swa", required=True),
        HParam("final_logit_softcapping", Kind.F32),
    ),
    derive=_derive,
    manifest=_manifest,
    memory=shared_by_later_layers,
    rope=RopeType.NEOX,
    size_name=by_layers({30: "26B.A4B", 35: "E2B", 42: "E4B", 60: "31B"}),
    example={
        **GEMMA.example,
        "block_count": 3,
        "attention.shared_kv_layers": 1,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [True, False, True],
        "attention.key_length_swa": 32,
        "attention.value_length_swa": 32,
        "embedding_length_per_layer_input": 32,
    },
)
