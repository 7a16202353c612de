"""GLM-4: norms before and after attention and feed-forward, gate and up fused, several position axes in OCR files."""

from collections.abc import Iterator
from itertools import chain

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.rotary import ROPE_SECTIONS, uses_mrope


def _rope(hp: HParams) -> RopeType:
    return RopeType.MROPE if uses_mrope(hp) else RopeType.NORM


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from _layer(hp, names, layer)
    for layer in range(hp.n_layer, hp.n_layer_all):
        nextn = chain(_layer(hp, names, layer), blocks.nextn_head(hp, layer))
        yield from blocks.nextn_unused(nextn, present=True)


def _layer(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp), required=layer < hp.n_layer)
    yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
    yield need(roles.FFN_UP, layer, hp.n_embd, 2 * hp.n_ff[0])
    yield need(roles.FFN_POST_NORM, layer, hp.n_embd)


ARCHITECTURE = Architecture(
    name="glm4",
    hparams=(RMS_EPSILON, ROPE_SECTIONS),
    manifest=_manifest,
    rope=_rope,
    size_name=by_layers({17: "1B", 40: "9B", 61: "32B"}),
    example=DENSE,
)
