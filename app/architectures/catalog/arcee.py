"""Arcee (AFM): Llama's attention with an ungated feed-forward."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.descriptor import as_read, by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])


ARCHITECTURE = replace(LLAMA, name="arcee", derive=as_read, manifest=_manifest, size_name=by_layers({36: "4B"}))
