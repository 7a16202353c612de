"""Phi-3.5 MoE: routed experts, norms and output with biases, LongRoPE tables."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.catalog import phi2
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    if hp.n_head[0] == 0:
        raise bad_value(hp.arch, "attention.head_count", 0, "at least 1: the rotary tables are as wide as a head")
    return hp


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_rot = hp.n_embd // hp.n_head[0]
    yield from blocks.embedding(hp)
    yield from phi2.biased_output(hp)
    for layer in range(hp.n_layer):
        yield from phi2.biased_attention(hp, names, layer)
        yield from blocks.layer_norm(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, hp.n_ff[0])
        yield from blocks.rotary_factors(layer, n_rot, roles.ROPE_FACTORS_LONG, roles.ROPE_FACTORS_SHORT)


ARCHITECTURE = Architecture(
    name="phimoe",
    hparams=(RMS_EPSILON,),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "16x3.8B"}),
    example=ROUTED,
)
