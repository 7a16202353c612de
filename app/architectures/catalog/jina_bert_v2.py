"""Jina BERT v2: BERT with ALiBi in place of positions, optional norms of Q and K, gate and up often fused."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, encoder, roles
from app.architectures.blocks import may, need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import SMALL
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import no_memory


def _derive(hp: HParams) -> HParams:
    return replace(hp, use_alibi=True)


def _up_width(hp: HParams, names: Names, layer: int) -> int:
    """The width of up: of the gate as well, where the file has them in one tensor."""
    found = names.get(roles.FFN_UP.tensor_name(layer))
    fused = (hp.n_embd, 2 * hp.n_ff[0])
    return fused[1] if found is not None and found.shape == fused else hp.n_ff[0]


def _attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    width, n_gqa = hp.n_embd, hp.n_embd_v_gqa()
    yield from blocks.qkv(hp, names, layer, width, n_gqa, n_gqa)
    yield from blocks.layer_norm(roles.ATTN_Q_NORM, layer, width, required=False)
    yield from blocks.layer_norm(roles.ATTN_K_NORM, layer, width, required=False)
    yield need(roles.ATTN_OUT, layer, width, width)
    yield need(roles.ATTN_OUT.bias, layer, width)
    yield from blocks.layer_norm(roles.ATTN_OUT_NORM, layer, width)
    yield from blocks.layer_norm(roles.ATTN_NORM_2, layer, width, required=False)


def _feed_forward(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    width, n_ff, n_up = hp.n_embd, hp.n_ff[0], _up_width(hp, names, layer)
    yield may(roles.FFN_GATE, layer, width, n_ff)
    yield need(roles.FFN_UP, layer, width, n_up)
    yield may(roles.FFN_UP.bias, layer, n_up)
    yield need(roles.FFN_DOWN, layer, n_ff, width)
    yield need(roles.FFN_DOWN.bias, layer, width)
    yield from blocks.layer_norm(roles.LAYER_OUT_NORM, layer, width)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from encoder.embeddings(hp, types_required=True)
    yield from encoder.embedding_norm(hp)
    yield may(roles.CLS, None, hp.n_embd)
    yield may(roles.CLS.bias, None, 1)
    for layer in range(hp.n_layer):
        yield from _attention(hp, names, layer)
        yield from _feed_forward(hp, names, layer)


ARCHITECTURE = Architecture(
    name="jina-bert-v2",
    hparams=(NORM_EPSILON,),
    derive=_derive,
    manifest=_manifest,
    memory=no_memory,
    rope=RopeType.NONE,
    size_name=by_layers({4: "33M", 12: "137M"}),
    example={
        **SMALL,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "tokenizer.ggml.token_type_count": 2,
    },
)
