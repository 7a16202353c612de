"""Qwen 2 MoE: routed experts and one shared expert behind a gate of its own in every layer."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp = mixture.expert_width(hp)
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, n_ff_exp)
        yield need(roles.FFN_GATE_INP_SHEXP, layer, hp.n_embd)
        yield from mixture.shared_expert(hp, layer, hp.u32(mixture.SHARED_FF.key) or hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="qwen2moe",
    hparams=(mixture.EXPERT_FF, mixture.SHARED_FF, RMS_EPSILON),
    derive=mixture.only_experts,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({24: "A2.7B", 28: "57B.A14B"}),
    example=ROUTED,
)
