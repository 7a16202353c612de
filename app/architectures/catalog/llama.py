"""Llama and what shares its graph (Mistral, Mixtral, SmolLM2, Granite 3): grouped queries, SwiGLU, experts."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParam, HParams
from app.architectures.manifest import Expected, Names
from app.architectures.rotary import full_rotation

_VOCABULARY = HParam("vocab_size")
_DENSE_SIZES = by_layers(
    {
        16: "1B",
        22: "1B",
        26: "3B",
        28: "3B",
        30: "256M",
        36: "8B",
        40: "13B",
        48: "34B",
        60: "30B",
    }
)
_MIXTRAL_SIZES = by_layers({32: "8x7B", 56: "8x22B"})


def _size_name(hp: HParams) -> str:
    if hp.n_expert == 8:
        return _MIXTRAL_SIZES(hp)
    if hp.n_layer == 32:
        n_vocab = hp.u32(_VOCABULARY.key) if hp.given(_VOCABULARY.key) else hp.n_vocab
        return "3B" if n_vocab == 49152 else "7B" if n_vocab < 40000 else "8B"
    if hp.n_layer == 80:
        return "65B" if hp.n_head == hp.n_head_kv else "70B"
    return _DENSE_SIZES(hp) if hp.n_layer else UNKNOWN_SIZE


def attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    """Norm, Q, K, V and output projection with their optional biases."""
    yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
    yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)


def dense(hp: HParams, layer: int) -> Iterator[Expected]:
    """Gated feed-forward with optional biases."""
    n_ff = hp.n_ff[0]
    yield from blocks.gated_ffn(hp, layer, n_ff)
    yield may(roles.FFN_GATE.bias, layer, n_ff)
    yield may(roles.FFN_DOWN.bias, layer, hp.n_embd)
    yield may(roles.FFN_UP.bias, layer, n_ff)


def feed_forward(hp: HParams, layer: int, n_ff_shared: int = 0) -> Iterator[Expected]:
    """A dense feed-forward, or routed experts and one that all tokens share (0: none)."""
    n_ff = hp.n_ff[0]
    if hp.n_expert == 0:
        yield from dense(hp, layer)
        return
    yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
    yield may(roles.FFN_GATE_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff, hp.n_embd, hp.n_expert)
    yield need(roles.FFN_UP_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)
    if n_ff_shared:
        yield need(roles.FFN_GATE_SHEXP, layer, hp.n_embd, n_ff_shared)
        yield need(roles.FFN_UP_SHEXP, layer, hp.n_embd, n_ff_shared)
        yield need(roles.FFN_DOWN_SHEXP, layer, n_ff_shared, hp.n_embd)


def manifest(hp: HParams, names: Names, n_ff_shared: int = 0) -> Iterator[Expected]:
    """Every tensor; relatives with experts may add one that all tokens share, of width `n_ff_shared`."""
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from attention(hp, names, layer)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.rotary_tables(hp, layer)
        yield from feed_forward(hp, layer, n_ff_shared)


ARCHITECTURE = Architecture(
    name="llama",
    hparams=(_VOCABULARY, RMS_EPSILON),
    derive=full_rotation,
    manifest=manifest,
    size_name=_size_name,
    example={**DENSE},
)
