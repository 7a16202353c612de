"""MiMo V2: K and V heads of different size, layers with and without window or experts, optional NextN layers."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from app.architectures import blocks, roles
from app.architectures.blocks import may, tensor
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE, EXPERTS
from app.architectures.hparams import Form, HParam, HParams, Kind, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import SLIDING_WINDOW, given_window

_EXPERT_FF = HParam("expert_feed_forward_length", form=Form.PER_LAYER, required=True)
_SWA_LAYERS = HParam("attention.sliding_window_pattern", form=Form.ARRAY, required=True)


def _derive(hp: HParams) -> HParams:
    hp = given_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), hp.array(_SWA_LAYERS.key) or ())
    return replace(hp, n_ff_exp=hp.array(_EXPERT_FF.key) or ())


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    trunk_missing = blocks.trunk_is_missing(hp, names)
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer_all):
        if layer < hp.n_layer:
            yield from _layer(hp, names, layer, required=not trunk_missing)
        else:
            present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
            out_norm = may(roles.LAYER_OUT_NORM, layer, hp.n_embd)
            nextn = chain(_layer(hp, names, layer, required=True), blocks.nextn_head(hp, layer), (out_norm,))
            yield from blocks.nextn_unused(nextn, present=present)


def _layer(hp: HParams, names: Names, layer: int, *, required: bool) -> Iterator[Expected]:
    n_head = hp.n_head[layer]
    n_q = hp.n_embd_head_k() * n_head
    yield from blocks.qkv(
        hp, names, layer, n_q, hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer), required=required and layer < hp.n_layer
    )
    yield tensor(roles.ATTN_OUT, layer, hp.n_embd_head_v() * n_head, hp.n_embd, required=required)
    yield tensor(roles.ATTN_NORM, layer, hp.n_embd, required=required)
    yield may(roles.ATTN_SINKS, layer, n_head)
    yield tensor(roles.FFN_NORM, layer, hp.n_embd, required=required)
    yield from blocks.gated_ffn(hp, layer, hp.n_ff[0], required=False)
    yield may(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
    yield from blocks.experts(hp, layer, hp.n_ff_exp[0], required=False)
    yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)


ARCHITECTURE = Architecture(
    name="mimo2",
    hparams=(
        RMS_EPSILON,
        _EXPERT_FF,
        replace(SLIDING_WINDOW, required=True),
        HParam("rope.freq_base_swa", Kind.F32),
        _SWA_LAYERS,
        HParam("attention.value_scale", Kind.F32),
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({48: "310B.A15B"}),
    example={
        **DENSE,
        **EXPERTS,
        "block_count": 3,
        "attention.key_length": 48,
        "attention.value_length": 32,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [1, 0, 1],
    },
)
