"""Seed-OSS: grouped queries with K and V of Q's head size, a norm after attention in place of one before the FFN."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.descriptor import as_read, by_layers
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    n_q, n_kv, _ = blocks.head_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.qkv(hp, names, layer, n_q, n_kv, n_kv)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield from blocks.norms(layer, hp.n_embd, roles.ATTN_NORM, roles.ATTN_POST_NORM)
        yield need(roles.FFN_GATE, layer, hp.n_embd, hp.n_ff[0])
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)


ARCHITECTURE = replace(
    LLAMA,
    name="seed_oss",
    derive=as_read,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({64: "36B"}),
)
