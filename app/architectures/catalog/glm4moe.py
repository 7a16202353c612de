"""GLM-4.5: leading dense layers, then routed and shared experts; Q and K normed in the larger sizes."""

from collections.abc import Iterator
from itertools import chain

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.rotary import ROPE_SECTIONS, uses_mrope


def _rope(hp: HParams) -> RopeType:
    return RopeType.MROPE if uses_mrope(hp) else RopeType.NEOX


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    trunk_is_missing = blocks.trunk_is_missing(hp, names)
    for layer in range(hp.n_layer):
        trunk = _layer(hp, names, layer)
        yield from blocks.optional(trunk) if trunk_is_missing else trunk
    present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
    for layer in range(hp.n_layer, hp.n_layer_all):
        nextn = chain(_layer(hp, names, layer), blocks.nextn_head(hp, layer))
        yield from blocks.nextn_unused(nextn, present=present)


def _layer(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp), required=layer < hp.n_layer)
    yield may(roles.ATTN_Q_NORM, layer, hp.n_embd_head_k())
    yield may(roles.ATTN_K_NORM, layer, hp.n_embd_head_k())
    yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)
    if mixture.is_dense(hp, layer):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        return
    n_ff_exp, n_shared = mixture.expert_width(hp), hp.u32(mixture.SHARED_COUNT.key)
    yield from mixture.router(hp, layer, biased=True)
    yield from blocks.experts(hp, layer, n_ff_exp)
    if n_shared:
        yield from mixture.shared_expert(hp, layer, n_shared * n_ff_exp)


ARCHITECTURE = Architecture(
    name="glm4moe",
    hparams=(
        mixture.EXPERT_FF_REQUIRED,
        RMS_EPSILON,
        ROPE_SECTIONS,
        mixture.SHARED_COUNT_REQUIRED,
        mixture.LEADING_DENSE,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        mixture.GATING_FUNC,
    ),
    derive=mixture.only_experts,
    manifest=_manifest,
    rope=_rope,
    size_name=by_layers({46: "106B.A12B", 48: "102B.A12B", 92: "355B.A32B"}),
    example={**ROUTED, **EXPERTS_AFTER_DENSE},
)
