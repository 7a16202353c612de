"""Falcon: fused QKV with few key heads, attention and an ungated feed-forward side by side."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.gpt2 import ARCHITECTURE as GPT2
from app.architectures.catalog.gpt2 import tied_output
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.rotary import full_rotation


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from tied_output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.layer_norm(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.layer_norm(roles.ATTN_NORM_2, layer, hp.n_embd, required=False)
        yield need(roles.ATTN_QKV, layer, hp.n_embd, sum(blocks.model_widths(hp)))
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])


ARCHITECTURE = replace(
    GPT2,
    name="falcon",
    derive=full_rotation,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "7B", 60: "40B"}),
)
