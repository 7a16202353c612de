"""Maincoder: grouped queries with normed Q and K, SwiGLU."""

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
    n_q, _, n_kv = blocks.head_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, n_q, n_kv, n_kv)
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_K_NORM, roles.ATTN_Q_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = replace(LLAMA, name="maincoder", derive=as_read, manifest=_manifest, size_name=by_layers({32: "1B"}))
