"""Phi-1, 1.5 and 2: attention and feed-forward side by side behind one norm, biases everywhere."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def biased_output(hp: HParams) -> Iterator[Expected]:
    """An output norm and an output projection, both with biases."""
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    yield need(roles.OUTPUT.bias, None, hp.n_vocab)


def biased_attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    """Attention with biases on its norm and its output projection."""
    yield from blocks.layer_norm(roles.ATTN_NORM, layer, hp.n_embd)
    yield from blocks.qkv(hp, names, layer, *blocks.model_widths(hp))
    yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
    yield need(roles.ATTN_OUT.bias, layer, hp.n_embd)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff = hp.n_ff[0]
    yield from blocks.embedding(hp)
    yield from biased_output(hp)
    for layer in range(hp.n_layer):
        yield from biased_attention(hp, names, layer)
        yield need(roles.FFN_DOWN, layer, n_ff, hp.n_embd)
        yield need(roles.FFN_DOWN.bias, layer, hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, n_ff)
        yield need(roles.FFN_UP.bias, layer, n_ff)


ARCHITECTURE = Architecture(
    name="phi2",
    hparams=(NORM_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({24: "1B", 32: "3B"}),
    example={**DENSE, NORM_EPSILON.key: 1e-5},
)
