"""Muse Glimmer: gated attention with normed Q and K, post-norms, a sliding window on three of four layers."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParam, HParams, Kind, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import SLIDING_WINDOW, SWA_PATTERN, with_window


def _derive(hp: HParams) -> HParams:
    return with_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), period=4)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    head = hp.n_embd_head_k()
    n_q = head * hp.n_head[0]
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.norms(layer, hp.n_embd, roles.ATTN_NORM, roles.ATTN_POST_NORM)
        yield from blocks.qkv(hp, names, layer, n_q, hp.n_embd_k_gqa(), hp.n_embd_v_gqa())
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield from blocks.norms(layer, head, roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
        yield need(roles.ATTN_GATE, layer, hp.n_embd, n_q)
        yield from blocks.norms(layer, hp.n_embd, roles.FFN_NORM, roles.FFN_POST_NORM)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="muse-glimmer",
    hparams=(
        RMS_EPSILON,
        replace(SLIDING_WINDOW, required=True),
        SWA_PATTERN,
        HParam("final_logit_softcapping", Kind.F32),
        HParam("logit_scale", Kind.F32, required=True),
        HParam("rope.freq_base_swa", Kind.F32),
    ),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({52: "30B"}),
    example={**DENSE, "block_count": 4, "attention.sliding_window": 32, "logit_scale": 1.0},
)
