"""Jais: GPT-2's attention with linear position biases, a gated feed-forward, everything with biases."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.gpt2 import ARCHITECTURE as GPT2
from app.architectures.catalog.gpt2 import fused_attention
from app.architectures.catalog.mpt import ALIBI_BIAS, with_alibi
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    for layer in range(hp.n_layer):
        yield from fused_attention(hp, layer)
        yield from blocks.layer_norm(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_DOWN.bias, layer, hp.n_embd)
        for role in (roles.FFN_GATE, roles.FFN_UP):
            yield need(role, layer, hp.n_embd, hp.n_ff[0])
            yield need(role.bias, layer, hp.n_ff[0])


ARCHITECTURE = replace(
    GPT2,
    name="jais",
    hparams=(*GPT2.hparams, ALIBI_BIAS),
    derive=with_alibi,
    manifest=_manifest,
    size_name=by_layers({24: "1.3B", 40: "13B"}),
    example={**GPT2.example, "attention.max_alibi_bias": 8.0},
)
