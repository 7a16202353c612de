"""Nemotron: queries as wide as the model, norms that scale and shift, an ungated feed-forward, optional biases."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.orion import ARCHITECTURE as ORION
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams
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
        yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)
        yield from blocks.layer_norm(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])
        yield may(roles.FFN_DOWN.bias, layer, hp.n_embd)
        yield may(roles.FFN_UP.bias, layer, hp.n_ff[0])


ARCHITECTURE = replace(ORION, name="nemotron", manifest=_manifest, size_name=by_layers({32: "4B"}))
