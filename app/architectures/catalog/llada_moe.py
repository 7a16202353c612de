"""LLaDA MoE: a diffusion language model whose every layer has routed experts."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers, without_causality
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    return without_causality(mixture.only_experts(hp))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp = mixture.expert_width(hp)
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, n_ff_exp)


ARCHITECTURE = Architecture(
    name="llada-moe",
    capabilities=Capabilities(diffusion=True),
    hparams=(mixture.EXPERT_FF, RMS_EPSILON),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({16: "A1.7B"}),
    example=ROUTED,
)
