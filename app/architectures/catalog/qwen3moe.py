"""Qwen3 MoE: normed Q and K, every layer with routed experts."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def layers(hp: HParams, names: Names) -> Iterator[Expected]:
    """The trunk: attention with normed Q and K, then routed experts."""
    n_ff_exp = mixture.expert_width(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.equal_kv_widths(hp))
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_K_NORM, roles.ATTN_Q_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, n_ff_exp)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    yield from layers(hp, names)


ARCHITECTURE = Architecture(
    name="qwen3moe",
    hparams=(mixture.EXPERT_FF, RMS_EPSILON),
    derive=mixture.only_experts,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({48: "30B.A3B", 94: "235B.A22B"}),
    example=ROUTED,
)
