"""Ling 2 and Ring 2: fused QKV, normed Q and K, leading dense layers, sigmoid routing, NextN layers."""

from collections.abc import Iterator
from itertools import chain

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from _layer(hp, layer)
    for layer in range(hp.n_layer, hp.n_layer_all):
        out_norm = need(roles.LAYER_OUT_NORM, layer, hp.n_embd)
        nextn = chain(_layer(hp, layer), blocks.nextn_head(hp, layer), (out_norm,))
        yield from blocks.nextn_unused(nextn, present=True)


def _layer(hp: HParams, layer: int) -> Iterator[Expected]:
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield need(roles.ATTN_QKV, layer, hp.n_embd, sum(blocks.model_widths(hp)))
    yield need(roles.ATTN_OUT, layer, hp.n_embd_head_k() * hp.n_head[0], hp.n_embd)
    yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    if mixture.is_dense(hp, layer):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        return
    n_ff_exp, n_shared = hp.n_ff_exp[0], hp.u32(mixture.SHARED_COUNT.key)
    yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
    yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
    yield from blocks.experts(hp, layer, n_ff_exp)
    yield from mixture.shared_expert(hp, layer, (hp.u32(mixture.SHARED_FF.key) or n_ff_exp) * n_shared)


ARCHITECTURE = Architecture(
    name="bailingmoe2",
    hparams=(
        RMS_EPSILON,
        mixture.LEADING_DENSE,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_FF,
        mixture.SHARED_COUNT_REQUIRED,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        mixture.GATING_FUNC_REQUIRED,
    ),
    derive=mixture.only_experts,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({20: "16B.A1B", 32: "100B.A6B"}),
    example={**ROUTED, **EXPERTS_AFTER_DENSE, "expert_gating_func": 2},
)
