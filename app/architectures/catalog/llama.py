"""Llama and what shares its graph (Mistral, Mixtral, SmolLM2, Granite 3): grouped queries, SwiGLU, experts."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture, by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names
from app.architectures.rotary import full_rotation

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
        return "3B" if hp.n_vocab == 49152 else "7B" if hp.n_vocab < 40000 else "8B"
    if hp.n_layer == 80:
        return "65B" if hp.n_head == hp.n_head_kv else "70B"
    return _DENSE_SIZES(hp) if hp.n_layer else UNKNOWN_SIZE


def attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    """Norm, Q, K, V and output projection with their optional biases."""
    n_q = hp.n_embd_head_k() * hp.n_head[0]
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from blocks.qkv(hp, names, layer, n_q, hp.n_embd_k_gqa(), hp.n_embd_v_gqa())
    yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
    yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)


def feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    """Dense gated feed-forward with optional biases, or routed experts."""
    n_ff = hp.n_ff[0]
    if hp.n_expert == 0:
        yield from blocks.gated_ffn(hp, layer, n_ff)
        yield may(roles.FFN_GATE.bias, layer, n_ff)
        yield may(roles.FFN_DOWN.bias, layer, hp.n_embd)
        yield may(roles.FFN_UP.bias, layer, n_ff)
        return
    yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
    yield may(roles.FFN_GATE_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff, hp.n_embd, hp.n_expert)
    yield need(roles.FFN_UP_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from attention(hp, names, layer)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.rotary_tables(hp, layer)
        yield from feed_forward(hp, layer)


ARCHITECTURE = Architecture(
    name="llama",
    hparams=(RMS_EPSILON,),
    derive=full_rotation,
    manifest=_manifest,
    size_name=_size_name,
    example={
        "context_length": 128,
        "embedding_length": 128,
        "block_count": 2,
        "feed_forward_length": 256,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    },
)
