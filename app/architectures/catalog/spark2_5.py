"""Spark 2.5: layers listed with and without window that differ in heads, each head of attention gated."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_LAYERS, window_as_listed


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        n_q = hp.n_embd_head_k(layer) * hp.n_head[layer]
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, n_q, hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer))
        yield need(roles.ATTN_GATE, layer, hp.n_embd, hp.n_head[layer])
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="spark2_5",
    hparams=(RMS_EPSILON, replace(SLIDING_WINDOW, required=True), SWA_LAYERS, FREQ_BASE_SWA),
    derive=window_as_listed,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({28: "1.7B"}),
    example={
        **DENSE,
        "attention.head_count": [4, 8],
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [False, True],
    },
)
