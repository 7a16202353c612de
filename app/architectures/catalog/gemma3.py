"""Gemma 3: five sliding-window layers to one full layer, post-norms, a large tied vocabulary."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, optional_window

DENSE_2_OUT = HParam("dense_2_feat_out")
DENSE_3_IN = HParam("dense_3_feat_in")


def _derive(hp: HParams) -> HParams:
    return optional_window(hp, period=6)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    # sentence-embedding heads of the embedding models built on it
    yield may(roles.DENSE_2_OUT, None, hp.n_embd, hp.u32(DENSE_2_OUT.key))
    yield may(roles.DENSE_3_OUT, None, hp.u32(DENSE_3_IN.key), hp.n_embd)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_K_NORM, roles.ATTN_Q_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[0])
        yield need(roles.FFN_POST_NORM, layer, hp.n_embd)


ARCHITECTURE = Architecture(
    name="gemma3",
    hparams=(
        SLIDING_WINDOW,
        SWA_PATTERN,
        FREQ_BASE_SWA,
        HParam("final_logit_softcapping", Kind.F32),
        DENSE_2_OUT,
        DENSE_3_IN,
        RMS_EPSILON,
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({18: "270M", 26: "1B", 32: "8B", 34: "4B", 48: "12B", 62: "27B"}),
    example={
        **DENSE,
        "block_count": 7,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.sliding_window": 32,
    },
)
