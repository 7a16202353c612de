"""StarCoder2: grouped queries with rotary positions, an ungated feed-forward, everything with biases."""

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
    n_q, n_k, n_v = blocks.model_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.layer_norm(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.ATTN_OUT.bias, layer, hp.n_embd)
        yield from blocks.layer_norm(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])
        yield need(roles.FFN_DOWN.bias, layer, hp.n_embd)
        yield need(roles.FFN_UP.bias, layer, hp.n_ff[0])


ARCHITECTURE = replace(
    GPT2,
    name="starcoder2",
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({30: "3B", 32: "7B", 40: "15B", 52: "20B", 88: "34B"}),
)
