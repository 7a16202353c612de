"""LLaDA: a diffusion language model on Llama's dense layers."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog import llama
from app.architectures.descriptor import Capabilities, by_layers, without_causality
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from llama.attention(hp, names, layer)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
        yield from llama.dense(hp, layer)


ARCHITECTURE = replace(
    llama.ARCHITECTURE,
    name="llada",
    capabilities=Capabilities(diffusion=True),
    derive=without_causality,
    manifest=_manifest,
    size_name=by_layers({32: "8B"}),
)
