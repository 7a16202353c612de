"""ERNIE 4.5: grouped queries with an optional bias on their output, SwiGLU."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.descriptor import as_read, by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names
from app.architectures.rotary import ROPE_SECTIONS


def dense(hp: HParams, layer: int) -> Iterator[Expected]:
    """The feed-forward of a layer without experts."""
    return blocks.gated_ffn(hp, layer, hp.n_ff[0])


def manifest(
    hp: HParams, names: Names, feed_forward: Callable[[HParams, int], Iterator[Expected]] = dense
) -> Iterator[Expected]:
    """Every tensor; relatives with experts bring a `feed_forward` of their own."""
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    n_q, _, n_kv = blocks.head_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, n_q, n_kv, n_kv)
        yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from feed_forward(hp, layer)


ARCHITECTURE = replace(
    LLAMA,
    name="ernie4_5",
    hparams=(ROPE_SECTIONS, *LLAMA.hparams),
    derive=as_read,
    manifest=manifest,
    size_name=by_layers({18: "0.3B", 28: "21B.A3B", 54: "300B.A47B"}),
)
