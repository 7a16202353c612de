"""Qwen3 MoE: normed Q and K, every layer with routed experts."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.hparams import Form, HParam, HParams, RopeType
from app.architectures.manifest import Expected, Names

_EXPERT_FF = HParam("expert_feed_forward_length", form=Form.PER_LAYER)


def _derive(hp: HParams) -> HParams:
    if hp.n_expert == 0:
        raise bad_value(hp.arch, "expert_count", 0, "at least 1: every layer has experts")
    widths = hp.array(_EXPERT_FF.key) or (0,) * hp.n_layer_all
    return replace(hp, n_ff_exp=widths)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    n_head_k, n_embd_gqa = hp.n_embd_head_k(), hp.n_embd_v_gqa()
    n_q = n_head_k * hp.n_head[0]
    # without a width of its own an expert has its share of the dense width
    n_ff_exp = hp.n_ff_exp[0] or hp.n_ff[0] // hp.n_expert_used[0]
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, n_q, n_embd_gqa, n_embd_gqa)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.ATTN_K_NORM, layer, n_head_k)
        yield need(roles.ATTN_Q_NORM, layer, n_head_k)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
        yield from blocks.experts(hp, layer, n_ff_exp)


ARCHITECTURE = Architecture(
    name="qwen3moe",
    hparams=(_EXPERT_FF, RMS_EPSILON),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({48: "30B.A3B", 94: "235B.A22B"}),
    example={
        "context_length": 128,
        "embedding_length": 128,
        "block_count": 2,
        "feed_forward_length": 256,
        "expert_feed_forward_length": 256,
        "expert_count": 4,
        "expert_used_count": 2,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-6,
    },
)
