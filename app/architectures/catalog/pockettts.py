"""Pocket TTS: the language model of a speech synthesiser, with layer norms and no output projection of its own."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import SMALL
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    width, n_gqa, n_ff = hp.n_embd, hp.n_embd_v_gqa(), hp.n_ff[0]
    yield from blocks.embedding(hp)
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, width)
    yield from blocks.tied(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.layer_norm(roles.ATTN_NORM, layer, width)
        yield from blocks.qkv(hp, names, layer, width, n_gqa, n_gqa, required=False)
        yield need(roles.ATTN_OUT, layer, width, width)
        yield from blocks.layer_norm(roles.FFN_NORM, layer, width)
        yield need(roles.FFN_DOWN, layer, n_ff, width)
        yield need(roles.FFN_UP, layer, width, n_ff)


ARCHITECTURE = Architecture(
    name="pockettts",
    hparams=(NORM_EPSILON,),
    manifest=_manifest,
    size_name=by_layers({6: "109M", 24: "335M"}),
    example={**SMALL, "attention.layer_norm_epsilon": 1e-5},
)
