"""DeciLM and Nemotron NAS: layers found by search, some with linear attention, some without attention or FFN."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        n_ff = hp.n_ff[layer]
        yield from _attention(hp, names, layer)
        yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)
        if n_ff:
            yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.rotary_tables(hp, layer)
        if n_ff:
            yield from blocks.gated_ffn(hp, layer, n_ff)
        yield may(roles.FFN_GATE.bias, layer, n_ff)
        yield may(roles.FFN_DOWN.bias, layer, hp.n_embd)
        yield may(roles.FFN_UP.bias, layer, n_ff)


def _attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    if hp.n_head_kv[layer]:
        n_q = hp.n_embd_head_k() * hp.n_head[layer]
        yield from blocks.attention(hp, names, layer, n_q, hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer))
    elif hp.n_head[layer]:
        # linear attention: one projection
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)


ARCHITECTURE = replace(
    LLAMA,
    name="deci",
    manifest=_manifest,
    size_name=by_layers({32: "7B", 80: "70B", 162: "405B"}),
    example={
        **LLAMA.example,
        "attention.head_count": [4, 4],
        "attention.head_count_kv": [2, 4],
        "feed_forward_length": [256, 512],
    },
)
