"""EXAONE 4: norms after attention and feed-forward, normed Q and K; the 32B has sliding-window layers."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window


def _derive(hp: HParams) -> HParams:
    if hp.n_layer != 64:
        return replace(hp, n_swa=hp.u32(SLIDING_WINDOW.key))
    n_swa = hp.u32(SLIDING_WINDOW.key) if hp.given(SLIDING_WINDOW.key) else 4096
    return with_window(hp, SwaType.STANDARD, n_swa, period=4)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer_all):
        if layer < hp.n_layer:
            yield from _attention(hp, names, layer, required=True)
            yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
            yield from _rest(hp, layer)
        else:
            block = chain(_attention(hp, names, layer, required=False), _rest(hp, layer), _nextn(hp, layer))
            yield from blocks.nextn_unused(block, present=True)


def _attention(hp: HParams, names: Names, layer: int, *, required: bool) -> Iterator[Expected]:
    n_q, n_k, n_v = blocks.head_widths(hp)
    yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v, required=required)
    yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)


def _rest(hp: HParams, layer: int) -> Iterator[Expected]:
    yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)
    yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
    yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
    yield need(roles.FFN_POST_NORM, layer, hp.n_embd)


def _nextn(hp: HParams, layer: int) -> Iterator[Expected]:
    yield need(roles.NEXTN_EH_PROJ, layer, 2 * hp.n_embd, hp.n_embd)
    yield from blocks.norms(layer, hp.n_embd, roles.NEXTN_ENORM, roles.NEXTN_HNORM)
    yield may(roles.NEXTN_SHARED_HEAD_NORM, layer, hp.n_embd)


ARCHITECTURE = replace(
    LLAMA,
    name="exaone4",
    hparams=(SWA_PATTERN, FREQ_BASE_SWA, SLIDING_WINDOW, *LLAMA.hparams),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({30: "1.2B", 64: "32B"}),
    example={**LLAMA.example, "block_count": 3, "nextn_predict_layers": 1},
)
