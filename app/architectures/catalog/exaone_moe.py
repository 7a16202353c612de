"""EXAONE MoE (K-EXAONE): sliding-window layers, dense layers first, then experts with a shared one; NextN layers."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE, EXPERTS_AFTER_DENSE
from app.architectures.hparams import HParams, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window


def _derive(hp: HParams) -> HParams:
    hp = with_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), period=4)
    return mixture.experts_after_dense(hp)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer_all):
        if layer >= hp.n_layer:
            block = chain(_attention(hp, names, layer), _dense(hp, layer), blocks.nextn_head(hp, layer))
            yield from blocks.nextn_unused(block, present=True)
            continue
        yield from _attention(hp, names, layer)
        yield from _dense(hp, layer) if mixture.is_dense(hp, layer) else _experts(hp, layer)


def _attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    n_q, n_kv, _ = blocks.head_widths(hp)
    yield from blocks.qkv(hp, names, layer, n_q, n_kv, n_kv, required=layer < hp.n_layer)
    yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
    if layer < hp.n_layer:
        yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
    yield need(roles.FFN_NORM, layer, hp.n_embd)


def _dense(hp: HParams, layer: int) -> Iterator[Expected]:
    return blocks.gated_ffn(hp, layer, hp.n_ff[0])


def _experts(hp: HParams, layer: int) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0]
    yield from mixture.router(hp, layer)
    yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
    yield from blocks.experts(hp, layer, n_ff_exp)
    yield from mixture.shared_expert(hp, layer, hp.u32(mixture.SHARED_FF.key) or n_ff_exp)


ARCHITECTURE = Architecture(
    name="exaone-moe",
    hparams=(
        SWA_PATTERN,
        FREQ_BASE_SWA,
        replace(SLIDING_WINDOW, required=True),
        RMS_EPSILON,
        mixture.SHARED_COUNT,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_FF,
        mixture.GATING_FUNC_REQUIRED,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        mixture.LEADING_DENSE,
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "30B.A3B", 48: "235B.A22B"}),
    example={
        **DENSE,
        **EXPERTS_AFTER_DENSE,
        "block_count": 5,
        "nextn_predict_layers": 1,
        "expert_gating_func": 2,
        "attention.sliding_window": 32,
    },
)
