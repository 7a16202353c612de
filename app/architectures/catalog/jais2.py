"""Jais 2: rotary positions, an ungated feed-forward, biases on outputs and norms."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.gpt2 import ARCHITECTURE as GPT2
from app.architectures.catalog.gpt2 import tied_output
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from tied_output(hp, names)
    n_q, n_k, n_v = blocks.head_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.layer_norm(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.ATTN_OUT.bias, layer, hp.n_embd)
        yield from blocks.layer_norm(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])
        yield need(roles.FFN_UP.bias, layer, hp.n_ff[0])
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_DOWN.bias, layer, hp.n_embd)


ARCHITECTURE = replace(
    GPT2,
    name="jais2",
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "8B", 68: "70B"}),
)
