"""Orion: queries as wide as the model, SwiGLU, norms that scale and shift."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import LAYER_NORMED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    n_q, n_k, n_v = blocks.model_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.layer_norm(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield from blocks.layer_norm(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="orion",
    hparams=(NORM_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({40: "14B"}),
    example={**LAYER_NORMED},
)
