"""Hunyuan V3: normed Q and K, any mix of dense, routed and shared feed-forwards, NextN layers of the same make."""

from collections.abc import Iterator
from itertools import chain

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names

_CHOICE_BIAS = roles.FFN_EXP_PROBS_B.part("")


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    trunk_is_missing = blocks.trunk_is_missing(hp, names)
    for layer in range(hp.n_layer):
        trunk = _attention(hp, names, layer)
        yield from blocks.optional(trunk) if trunk_is_missing else trunk
        yield from _feed_forward(hp, names, layer)
    present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
    for layer in range(hp.n_layer, hp.n_layer_all):
        nextn = chain(_attention(hp, names, layer), blocks.nextn_joint(hp, layer))
        yield from blocks.nextn_unused(nextn, present=present)
        # the reference loads these all the same
        yield from _feed_forward(hp, names, layer)
        yield from blocks.nextn_tables(hp, layer)


def _attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp), required=layer < hp.n_layer)
    yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
    yield need(roles.FFN_NORM, layer, hp.n_embd)


def _feed_forward(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0] or hp.n_ff[0] // (hp.n_expert_used[0] or 1)
    yield from blocks.gated_ffn(hp, layer, hp.n_ff[0], required=False)
    yield may(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
    yield may(_CHOICE_BIAS, layer, hp.n_expert)
    yield may(roles.FFN_DOWN_EXPS, layer, n_ff_exp, hp.n_embd, hp.n_expert)
    yield from blocks.fused_experts(hp, names, layer, n_ff_exp, required=False)
    yield from mixture.shared_expert(hp, layer, hp.u32(mixture.SHARED_FF.key) or n_ff_exp, required=False)


ARCHITECTURE = Architecture(
    name="hy_v3",
    hparams=(
        RMS_EPSILON,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_FF,
        mixture.GATING_FUNC,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
    ),
    derive=mixture.with_expert_widths,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({48: "30B.A3B"}),
    example=ROUTED,
)
