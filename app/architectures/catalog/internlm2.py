"""InternLM2: grouped queries as wide as the model, SwiGLU, an output projection of its own."""

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
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = replace(
    LLAMA,
    name="internlm2",
    derive=as_read,
    manifest=_manifest,
    size_name=by_layers({32: "7B", 48: "20B"}),
)
