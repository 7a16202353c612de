"""Qwen 2 and 2.5: grouped queries with biased projections, SwiGLU, an output that may carry a bias."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names

_SIZES = by_layers({32: "7B", 36: "3B", 48: "14B", 64: "32B", 80: "70B"})


def _size_name(hp: HParams) -> str:
    if hp.n_layer == 24:
        return "0.5B" if hp.n_embd == 1024 else "1B"
    if hp.n_layer == 28:
        return "1.5B" if hp.n_embd == 1536 else "7B"
    if hp.n_layer == 40:
        return "4B" if hp.n_head[0] == 20 else "13B"
    return _SIZES(hp)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield may(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    yield may(roles.OUTPUT.bias, None, hp.n_vocab)
    yield from blocks.tied(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="qwen2",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=_size_name,
    example=DENSE,
)
