"""ModernBERT: pre-norms, fused QKV, gate and up fused, every third layer attends to all, the others to a window."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need, tensor
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import SMALL
from app.architectures.hparams import HParam, HParams, Kind, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import no_memory
from app.architectures.window import SLIDING_WINDOW, SWA_PATTERN, with_window


def _derive(hp: HParams) -> HParams:
    n_swa = hp.u32(SLIDING_WINDOW.key)
    if n_swa == 0:
        return replace(hp, swa_type=SwaType.NONE)
    return with_window(hp, SwaType.SYMMETRIC, n_swa, period=3, dense_first=True)


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.TOKEN_EMBD_NORM, 0, hp.n_embd)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    for layer in range(hp.n_layer):
        # the first layer's input is normed already
        yield tensor(roles.ATTN_NORM, layer, hp.n_embd, required=layer != 0)
        yield need(roles.ATTN_QKV, layer, hp.n_embd, 3 * hp.n_embd)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, 2 * hp.n_ff[0])
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield may(roles.CLS_OUT, None, hp.n_embd, hp.n_cls_out)
    yield may(roles.CLS_OUT.bias, None, hp.n_cls_out)
    yield may(roles.CLS, None, hp.n_embd, hp.n_embd)
    yield may(roles.CLS_NORM, None, hp.n_embd)


ARCHITECTURE = Architecture(
    name="modern-bert",
    hparams=(
        SLIDING_WINDOW,
        SWA_PATTERN,
        HParam("rope.freq_base_swa", Kind.F32),
        NORM_EPSILON,
        HParam("hidden_activation", Kind.STRING),
    ),
    derive=_derive,
    manifest=_manifest,
    memory=no_memory,
    rope=RopeType.NEOX,
    size_name=by_layers({12: "47M", 22: "149M", 28: "395M"}),
    example={
        **SMALL,
        "block_count": 4,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": 32,
        "attention.causal": False,
    },
)
