"""Gemma: wide heads, a large vocabulary whose embedding is also the output projection."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield blocks.embedding_as_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="gemma",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({18: "2B", 28: "7B"}),
    example={**DENSE, "attention.key_length": 64, "attention.value_length": 64},
)
