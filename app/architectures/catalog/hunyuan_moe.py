"""Hunyuan MoE: normed Q and K, routed experts as wide as the dense width and a shared one in every layer."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_K_NORM, roles.ATTN_Q_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, hp.n_ff[0])
        yield from mixture.shared_expert(hp, layer, hp.u32(mixture.SHARED_FF.key) or hp.n_ff[layer])


ARCHITECTURE = Architecture(
    name="hunyuan-moe",
    hparams=(RMS_EPSILON, mixture.EXPERT_FF_REQUIRED, mixture.SHARED_FF),
    derive=mixture.with_expert_widths,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "A13B"}),
    example=ROUTED,
)
