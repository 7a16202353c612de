"""Grok: scaled and soft-capped attention, routed experts that may have a dense path beside them, norms behind both."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names

_SCALES = (
    "logit_scale",
    "embedding_scale",
    "attention.output_scale",
    "attn_logit_softcapping",
    "router_logit_softcapping",
    "final_logit_softcapping",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)


def _derive(hp: HParams) -> HParams:
    mixture.require_experts(hp)
    return mixture.with_expert_widths(hp)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff = hp.n_ff[0]
    n_ff_exp = hp.n_ff_exp[0] or n_ff
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield from blocks.norms(layer, hp.n_embd, roles.ATTN_OUT_NORM, roles.FFN_NORM)
        yield from blocks.gated_ffn(hp, layer, n_ff, required=False)
        yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
        yield may(roles.FFN_GATE_EXPS, layer, hp.n_embd, n_ff_exp, hp.n_expert)
        yield need(roles.FFN_DOWN_EXPS, layer, n_ff_exp, hp.n_embd, hp.n_expert)
        yield need(roles.FFN_UP_EXPS, layer, hp.n_embd, n_ff_exp, hp.n_expert)
        yield may(roles.LAYER_OUT_NORM, layer, hp.n_embd)
        if roles.LAYER_OUT_NORM.tensor_name(layer) not in names:
            yield Expected(role=roles.FFN_POST_NORM, layer=layer, shape=(hp.n_embd,), fused=roles.LAYER_OUT_NORM)


ARCHITECTURE = Architecture(
    name="grok",
    capabilities=Capabilities(tensor_split=False, flash_attention=False),
    hparams=(
        RMS_EPSILON,
        mixture.EXPERT_FF,
        HParam("attention.temperature_length"),
        *(HParam(key, Kind.F32) for key in _SCALES),
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({64: "314B"}),
    example=ROUTED,
)
