"""DBRX: clamped fused QKV, a norm behind attention, routed experts in every layer."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names

_CLAMP = HParam("attention.clamp_kqv", Kind.F32, required=True)


def _derive(hp: HParams) -> HParams:
    mixture.require_experts(hp)
    return hp


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_QKV, layer, hp.n_embd, sum(blocks.model_widths(hp)))
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.ATTN_OUT_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="dbrx",
    hparams=(NORM_EPSILON, _CLAMP),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({40: "16x12B"}),
    example={**ROUTED, NORM_EPSILON.key: 1e-5, _CLAMP.key: 8.0},
)
