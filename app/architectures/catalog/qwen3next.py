"""Qwen3 Next: three gated delta-rule layers to one full-attention layer with a Q gate, experts and a shared one."""

from collections.abc import Iterator
from itertools import chain

from app.architectures import blocks, mixture, recurrent, roles
from app.architectures.blocks import tensor
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import ROUTED, STATE_SPACE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.recurrent_memory import trunk_hybrid


def gated_attention(hp: HParams, names: Names, layer: int, *, required: bool = True) -> Iterator[Expected]:
    """Full attention whose Q carries a gate of its own width, with a norm per head of Q and K."""
    head = hp.n_embd_head_k()
    n_q = head * hp.n_head[0]
    yield from blocks.qkv(hp, names, layer, 2 * n_q, hp.n_embd_k_gqa(), hp.n_embd_v_gqa(), required=required)
    yield tensor(roles.ATTN_OUT, layer, n_q, hp.n_embd, required=required)
    yield tensor(roles.ATTN_Q_NORM, layer, head, required=required)
    yield tensor(roles.ATTN_K_NORM, layer, head, required=required)


def routed_and_shared(
    hp: HParams, names: Names, layer: int, n_ff_shared: int, *, required: bool = True
) -> Iterator[Expected]:
    """Routed experts and a shared one whose output has a gate."""
    n_ff_exp = mixture.expert_width(hp)
    yield from mixture.router(hp, layer, required=required)
    yield tensor(roles.FFN_DOWN_EXPS, layer, n_ff_exp, hp.n_embd, hp.n_expert, required=required)
    yield from blocks.fused_experts(hp, names, layer, n_ff_exp, required=required)
    yield tensor(roles.FFN_GATE_INP_SHEXP, layer, hp.n_embd, required=required)
    yield from mixture.shared_expert(hp, layer, n_ff_shared, required=required)


def _derive(hp: HParams) -> HParams:
    mixture.require_experts(hp)
    hp = recurrent.recurrent_by_interval(recurrent.with_ssm(mixture.with_expert_widths(hp)))
    mixture.expert_width(hp)
    return hp


def _linear_attention(hp: HParams, layer: int, *, required: bool) -> Iterator[Expected]:
    keys, values = recurrent.delta_widths(hp)
    heads = hp.ssm_dt_rank
    # early files hold Q, K, V and the gate in one projection
    yield tensor(roles.SSM_IN, layer, hp.n_embd, 2 * keys + 2 * values, required=False)
    yield tensor(roles.ATTN_QKV, layer, hp.n_embd, 2 * keys + values, required=False)
    yield tensor(roles.ATTN_GATE, layer, hp.n_embd, values, required=False)
    yield tensor(roles.SSM_CONV1D, layer, hp.ssm_d_conv, 2 * keys + values, required=required)
    yield tensor(roles.SSM_DT.bias, layer, heads, required=required)
    yield tensor(roles.SSM_A_NOSCAN, layer, heads, required=required)
    yield tensor(roles.SSM_BETA_ALPHA, layer, hp.n_embd, 2 * heads, required=required)
    yield tensor(roles.SSM_NORM, layer, hp.ssm_d_state, required=required)
    yield tensor(roles.SSM_OUT, layer, values, hp.n_embd, required=required)


def _layer(hp: HParams, names: Names, layer: int, *, required: bool) -> Iterator[Expected]:
    yield tensor(roles.ATTN_NORM, layer, hp.n_embd, required=required)
    yield tensor(roles.ATTN_POST_NORM, layer, hp.n_embd, required=required)
    if hp.is_recr[layer]:
        yield from _linear_attention(hp, layer, required=required)
    else:
        yield from gated_attention(hp, names, layer, required=required)
    n_ff_shared = hp.u32(mixture.SHARED_FF.key) or hp.n_ff[layer]
    yield from routed_and_shared(hp, names, layer, n_ff_shared, required=required)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    required = not blocks.trunk_is_missing(hp, names)
    for layer in range(hp.n_layer):
        yield from _layer(hp, names, layer, required=required)
    for layer in range(hp.n_layer, hp.n_layer_all):
        nextn = chain(_layer(hp, names, layer, required=True), blocks.nextn_head(hp, layer))
        yield from blocks.nextn_unused(nextn, present=True)


ARCHITECTURE = Architecture(
    name="qwen3next",
    capabilities=Capabilities(hybrid=True, q_gate=True, linear_attention=True),
    hparams=(
        mixture.EXPERT_FF,
        mixture.SHARED_FF,
        RMS_EPSILON,
        *recurrent.GROUPED_SSM_KEYS,
        recurrent.RECURRENT_LAYERS,
        recurrent.FULL_ATTENTION_INTERVAL,
    ),
    derive=_derive,
    manifest=_manifest,
    memory=trunk_hybrid,
    rope=RopeType.NEOX,
    size_name=by_layers({48: "80B.A3B"}),
    example={
        **ROUTED,
        **STATE_SPACE,
        "expert_shared_feed_forward_length": 256,
        "ssm.inner_size": 256,
        "ssm.state_size": 64,
        "ssm.group_count": 4,
        "full_attention_interval": 2,
    },
)
