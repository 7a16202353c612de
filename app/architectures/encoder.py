"""Encoders: what the BERT and T5 families share."""

from collections.abc import Iterable, Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names
from app.errors import MetadataError


def require_token_types(hp: HParams) -> HParams:
    """Refuse a file that does not say how many kinds of token there are. Raises MetadataError bad_value."""
    if hp.n_token_types == 0:
        key = "tokenizer.ggml.token_type_count"
        raise MetadataError(
            f"{key} is 0 or missing, expected at least 1", code="bad_value", key=key, expected="at least 1", found=0
        )
    return hp


def embeddings(hp: HParams, *, types_required: bool = False) -> Iterator[Expected]:
    """The embeddings of tokens and of their kinds."""
    yield from blocks.embedding(hp)
    yield blocks.tensor(roles.TOKEN_TYPES, None, hp.n_embd, hp.n_token_types, required=types_required)


def embedding_norm(hp: HParams) -> Iterator[Expected]:
    """The layer norm after the embeddings."""
    yield from blocks.layer_norm(roles.TOKEN_EMBD_NORM, 0, hp.n_embd)


def classifier(hp: HParams) -> Iterator[Expected]:
    """The optional head that turns a pooled embedding into scores."""
    yield may(roles.CLS, None, hp.n_embd, hp.n_embd)
    yield may(roles.CLS.bias, None, hp.n_embd)
    yield may(roles.CLS_OUT, None, hp.n_embd, hp.n_cls_out)
    yield may(roles.CLS_OUT.bias, None, hp.n_cls_out)


def post_norm_layer(hp: HParams, names: Names, layer: int, feed_forward: Iterable[Expected]) -> Iterator[Expected]:
    """A layer as BERT has it: attention and feed-forward, each normed after it is added."""
    n_gqa = hp.n_embd_v_gqa()
    yield from blocks.qkv(hp, names, layer, hp.n_embd, n_gqa, n_gqa)
    yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
    yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)
    yield from blocks.layer_norm(roles.ATTN_OUT_NORM, layer, hp.n_embd)
    yield from feed_forward
    yield from blocks.layer_norm(roles.LAYER_OUT_NORM, layer, hp.n_embd)


def ungated_ffn(hp: HParams, layer: int) -> Iterator[Expected]:
    """A feed-forward without gate, with optional biases."""
    n_ff = hp.n_ff[0]
    yield need(roles.FFN_UP, layer, hp.n_embd, n_ff)
    yield may(roles.FFN_UP.bias, layer, n_ff)
    yield need(roles.FFN_DOWN, layer, n_ff, hp.n_embd)
    yield may(roles.FFN_DOWN.bias, layer, hp.n_embd)


def relative_layer(hp: HParams, layer: int) -> Iterator[Expected]:
    """An encoder layer of the T5 family, with a table of relative positions where the file has one."""
    n_k, n_v, n_ff = hp.n_embd_k_gqa(), hp.n_embd_v_gqa(), hp.n_ff[0]
    yield need(roles.ENC_ATTN_NORM, layer, hp.n_embd)
    yield may(roles.ENC_ATTN_REL_B, layer, hp.n_head[0], hp.u32("attention.relative_buckets_count"))
    yield need(roles.ENC_ATTN_Q, layer, hp.n_embd, n_k)
    yield need(roles.ENC_ATTN_K, layer, hp.n_embd, n_k)
    yield need(roles.ENC_ATTN_V, layer, hp.n_embd, n_v)
    yield need(roles.ENC_ATTN_OUT, layer, n_v, hp.n_embd)
    yield need(roles.ENC_FFN_NORM, layer, hp.n_embd)
    yield may(roles.ENC_FFN_GATE, layer, hp.n_embd, n_ff)
    yield need(roles.ENC_FFN_DOWN, layer, n_ff, hp.n_embd)
    yield need(roles.ENC_FFN_UP, layer, hp.n_embd, n_ff)
