"""Hyper-connections: several residual streams, mixed into each block's input and out of its output again."""

from collections.abc import Iterator
from typing import Final

from app.architectures import roles
from app.architectures.blocks import need, tensor
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected

STREAM_COUNT: Final = "hyper_connection.count"


def head(hp: HParams) -> Iterator[Expected]:
    """What joins the streams before the output norm."""
    count = hp.u32(STREAM_COUNT)
    yield need(roles.HC_HEAD_FN, None, count * hp.n_embd, count)
    yield need(roles.HC_HEAD_BASE, None, count)
    yield need(roles.HC_HEAD_SCALE, None, 1)


def mixers(hp: HParams, layer: int, *, square: bool, required: bool = True) -> Iterator[Expected]:
    """The mixers of a layer's two blocks: weights into and out of a block and, if `square`, from stream to stream."""
    count = hp.u32(STREAM_COUNT)
    width, scales = ((2 + count) * count, 3) if square else (2 * count, 2)
    for function, base, scale in (
        (roles.HC_ATTN_FN, roles.HC_ATTN_BASE, roles.HC_ATTN_SCALE),
        (roles.HC_FFN_FN, roles.HC_FFN_BASE, roles.HC_FFN_SCALE),
    ):
        yield tensor(function, layer, count * hp.n_embd, width, required=required)
        yield tensor(base, layer, width, required=required)
        yield tensor(scale, layer, scales, required=required)
