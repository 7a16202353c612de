"""Gemma 2: every other layer with a sliding window, norms before and after attention and feed-forward."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.gemma import ARCHITECTURE as GEMMA
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.hparams import HParam, HParams, Kind, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window

_DEFAULT_WINDOW = 4096
_LAYERS_27B = 46


def _derive(hp: HParams) -> HParams:
    if hp.n_layer == _LAYERS_27B and hp.n_head[0] == 0:
        raise bad_value(hp.arch, "attention.head_count", 0, "at least 1: it scales the attention of this size")
    n_swa = hp.u32(SLIDING_WINDOW.key) if hp.given(SLIDING_WINDOW.key) else _DEFAULT_WINDOW
    return with_window(hp, SwaType.STANDARD, n_swa, period=2)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield blocks.embedding_as_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[0])
        yield need(roles.FFN_POST_NORM, layer, hp.n_embd)


ARCHITECTURE = Architecture(
    name="gemma2",
    hparams=(
        SWA_PATTERN,
        FREQ_BASE_SWA,
        SLIDING_WINDOW,
        RMS_EPSILON,
        HParam("attn_logit_softcapping", Kind.F32),
        HParam("final_logit_softcapping", Kind.F32),
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({26: "2B", 42: "9B", 46: "27B"}),
    example={**GEMMA.example, "attention.sliding_window": 32},
)
