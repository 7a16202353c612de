"""Cohere 2 MoE: dense layers first, then routed experts with shared ones; windows on three layers of four; NextN."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import may, need
from app.architectures.common import NORM_EPSILON, RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, LAYER_NORMED
from app.architectures.hparams import HParam, HParams, Kind, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window
from app.errors import MetadataError


def _derive(hp: HParams) -> HParams:
    if not hp.given(NORM_EPSILON.key) and not hp.given(RMS_EPSILON.key):
        key = NORM_EPSILON.name(hp.arch)
        raise MetadataError(f"{key} and {RMS_EPSILON.name(hp.arch)} are missing", code="missing_key", key=key)
    hp = with_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), period=4, dense_first=True)
    return mixture.only_experts(hp)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    trunk = _trunk(hp, names)
    yield from blocks.optional(trunk) if blocks.trunk_is_missing(hp, names) else trunk
    present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
    for layer in range(hp.n_layer, hp.n_layer_all):
        block = chain(_attention(hp, names, layer), _experts(hp, names, layer), _nextn(hp, layer))
        yield from blocks.nextn_unused(block, present=present)
        # heads of their own are loaded wherever the file has them
        yield may(roles.NEXTN_EMBED_TOKENS, layer, hp.n_embd, hp.n_vocab)
        yield may(roles.NEXTN_SHARED_HEAD_HEAD, layer, hp.n_embd, hp.n_vocab)
        yield may(roles.NEXTN_SHARED_HEAD_NORM, layer, hp.n_embd)


def _trunk(hp: HParams, names: Names) -> Iterator[Expected]:
    for layer in range(hp.n_layer):
        yield from _attention(hp, names, layer)
        if mixture.is_dense(hp, layer):
            yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        else:
            yield from _experts(hp, names, layer)


def _attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    n_q, _, n_kv = blocks.head_widths(hp)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from blocks.qkv(hp, names, layer, n_q, n_kv, n_kv, required=layer < hp.n_layer)
    yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)


def _experts(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0] or hp.n_ff[0]
    yield from mixture.router(hp, layer)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff_exp, hp.n_embd, hp.n_expert)
    yield from blocks.fused_experts(hp, names, layer, n_ff_exp, required=layer < hp.n_layer)
    n_shared = hp.u32(mixture.SHARED_COUNT.key)
    if n_shared:
        yield from mixture.shared_expert(hp, layer, hp.u32(mixture.SHARED_FF.key) or n_ff_exp * n_shared)


def _nextn(hp: HParams, layer: int) -> Iterator[Expected]:
    yield need(roles.NEXTN_EH_PROJ, layer, 2 * hp.n_embd, hp.n_embd)
    yield from blocks.norms(layer, hp.n_embd, roles.NEXTN_ENORM, roles.NEXTN_HNORM)


ARCHITECTURE = Architecture(
    name="cohere2moe",
    hparams=(
        replace(NORM_EPSILON, required=False),
        replace(RMS_EPSILON, required=False),
        replace(SLIDING_WINDOW, required=True),
        HParam("logit_scale", Kind.F32, required=True),
        replace(mixture.LEADING_DENSE, required=True),
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_FF,
        mixture.SHARED_COUNT,
        mixture.WEIGHTS_NORM,
        mixture.WEIGHTS_SCALE,
        mixture.GATING_FUNC,
        SWA_PATTERN,
        FREQ_BASE_SWA,
    ),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({49: "30B.A3B"}),
    example={
        **LAYER_NORMED,
        **EXPERTS_AFTER_DENSE,
        "block_count": 4,
        "logit_scale": 0.25,
        "attention.sliding_window": 32,
    },
)
