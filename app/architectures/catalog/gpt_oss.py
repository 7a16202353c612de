"""gpt-oss: alternating sliding-window layers, attention sinks, experts with biases."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import Form, HParam, HParams, Kind, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import SLIDING_WINDOW, SWA_PATTERN, with_window

_EXPERT_FF = HParam("expert_feed_forward_length", form=Form.PER_LAYER, required=True)


def _derive(hp: HParams) -> HParams:
    hp = with_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), period=2)
    return replace(hp, n_ff_exp=hp.array(_EXPERT_FF.key) or ())


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp, n_rot, n_head, n_head_kv = hp.n_ff_exp[0], hp.n_rot(), hp.n_head[0], hp.n_head_kv[0]
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)
        # heads are as wide as their rotation
        yield from blocks.qkv(hp, names, layer, n_head * n_rot, n_head_kv * n_rot, n_head_kv * n_rot)
        yield need(roles.ATTN_OUT, layer, n_head * n_rot, hp.n_embd)
        yield need(roles.ATTN_SINKS, layer, n_head)
        yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
        yield from blocks.experts(hp, layer, n_ff_exp)
        yield need(roles.ATTN_OUT.bias, layer, hp.n_embd)
        yield need(roles.FFN_GATE_INP.bias, layer, hp.n_expert)
        yield need(roles.FFN_GATE_EXPS.bias, layer, n_ff_exp, hp.n_expert)
        yield need(roles.FFN_DOWN_EXPS.bias, layer, hp.n_embd, hp.n_expert)
        yield need(roles.FFN_UP_EXPS.bias, layer, n_ff_exp, hp.n_expert)


ARCHITECTURE = Architecture(
    name="gpt-oss",
    hparams=(
        RMS_EPSILON,
        _EXPERT_FF,
        replace(SLIDING_WINDOW, required=True),
        SWA_PATTERN,
        HParam("rope.freq_base_swa", Kind.F32),
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({24: "20B", 36: "120B"}),
    example={**ROUTED, "attention.sliding_window": 32},
)
