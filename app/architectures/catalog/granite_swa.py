"""Granite with sliding-window layers the file lists, attention sinks, and gate and up of its experts fused."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.granite import ARCHITECTURE as GRANITE
from app.architectures.catalog.granite import DEEPSTACK, SCALES, with_deepstack
from app.architectures.catalog.llama import attention, dense
from app.architectures.descriptor import by_layers
from app.architectures.hparams import Form, HParam, HParams
from app.architectures.manifest import Expected, Names
from app.architectures.mixture import SHARED_FF
from app.architectures.window import SLIDING_WINDOW, SWA_LAYERS, window_as_listed


def _derive(hp: HParams) -> HParams:
    return with_deepstack(window_as_listed(hp))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from attention(hp, names, layer)
        yield need(roles.ATTN_SINKS, layer, hp.n_head[0])
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.rotary_tables(hp, layer)
        yield from dense(hp, layer) if hp.n_expert == 0 else _experts(hp, names, layer)


def _experts(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    n_ff, n_ff_shared = hp.n_ff[0], hp.u32(SHARED_FF.key)
    yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff, hp.n_embd, hp.n_expert)
    yield from blocks.fused_experts(hp, names, layer, n_ff)
    if n_ff_shared:
        # gate and up of the shared expert stay fused
        yield need(roles.FFN_UP_SHEXP, layer, hp.n_embd, 2 * n_ff_shared)
        yield need(roles.FFN_DOWN_SHEXP, layer, n_ff_shared, hp.n_embd)


ARCHITECTURE = replace(
    GRANITE,
    name="granite_swa",
    hparams=(
        *SCALES,
        SWA_LAYERS,
        replace(SLIDING_WINDOW, required=True),
        DEEPSTACK,
        HParam("attention.rope_pattern", form=Form.ARRAY),
    ),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({32: "3B", 40: "3B"}),
    example={
        **GRANITE.example,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [1, 0],
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_shared_feed_forward_length": 256,
    },
)
