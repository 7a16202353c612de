"""Gemma 3n: four streams in alternation, low-rank residuals, an embedding per layer, keys that later layers share."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.attention_memory import shared_by_later_layers
from app.architectures.blocks import may, need
from app.architectures.catalog.gemma import ARCHITECTURE as GEMMA
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.hparams import HParams, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window

_STREAMS = 4
_LAUREL_RANK = 64
_PER_LAYER = 256
_LAYERS_WITH_KEYS = 20


def _derive(hp: HParams) -> HParams:
    hp = with_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), period=5)
    return replace(hp, n_layer_kv_from_start=_LAYERS_WITH_KEYS)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_embd, streams = hp.n_embd, _STREAMS
    yield may(roles.OUTPUT, None, n_embd, hp.n_vocab)
    yield from blocks.tied(hp, names)
    yield from blocks.embedding(hp)
    yield need(roles.ALTUP_PROJ, None, n_embd, n_embd, streams - 1)
    yield need(roles.ALTUP_UNEMBD_PROJ, None, n_embd, n_embd, streams - 1)
    yield need(roles.PER_LAYER_TOKEN_EMBD, None, _PER_LAYER * hp.n_layer, hp.n_vocab)
    yield need(roles.PER_LAYER_MODEL_PROJ, 0, n_embd, _PER_LAYER * hp.n_layer)
    yield need(roles.PER_LAYER_PROJ_NORM, 0, _PER_LAYER)
    yield need(roles.OUTPUT_NORM, None, n_embd)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
        yield from blocks.norms(layer, n_embd, roles.ATTN_POST_NORM, roles.FFN_NORM)
        yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[0])
        yield need(roles.FFN_POST_NORM, layer, n_embd)
        yield need(roles.PER_LAYER_INP_GATE, layer, n_embd, _PER_LAYER)
        yield need(roles.PER_LAYER_PROJ, layer, _PER_LAYER, n_embd)
        yield need(roles.PER_LAYER_POST_NORM, layer, n_embd)
        yield need(roles.ALTUP_CORRECT_COEF, layer, streams, streams)
        yield need(roles.ALTUP_CORRECT_SCALE, layer, n_embd)
        yield need(roles.ALTUP_PREDICT_COEF, layer, streams, streams * streams)
        yield need(roles.ALTUP_ROUTER, layer, n_embd, streams)
        yield need(roles.ALTUP_ROUTER_NORM, layer, n_embd)
        yield need(roles.LAUREL_L, layer, n_embd, _LAUREL_RANK)
        yield need(roles.LAUREL_R, layer, _LAUREL_RANK, n_embd)
        yield need(roles.LAUREL_POST_NORM, layer, n_embd)


ARCHITECTURE = Architecture(
    name="gemma3n",
    capabilities=Capabilities(tensor_split=False),
    hparams=(SWA_PATTERN, FREQ_BASE_SWA, replace(SLIDING_WINDOW, required=True), RMS_EPSILON),
    derive=_derive,
    manifest=_manifest,
    memory=shared_by_later_layers,
    rope=RopeType.NEOX,
    size_name=by_layers({30: "E2B", 35: "E4B"}),
    example={**GEMMA.example, "attention.sliding_window": 32, "attention.sliding_window_pattern": 2},
)
