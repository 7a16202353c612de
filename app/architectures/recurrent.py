"""Recurrent layers: which layers of a model are, and the tensors of state spaces, the delta rule and RWKV.

Shapes are in GGUF order, in the order the reference expects the tensors.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from app.architectures import blocks, roles
from app.architectures.blocks import need, tensor
from app.architectures.common import bad_value
from app.architectures.hparams import Form, HParam, HParams, layers_where
from app.architectures.manifest import Expected, Names

SSM_KEYS: Final = (
    HParam("ssm.conv_kernel", required=True),
    HParam("ssm.inner_size", required=True),
    HParam("ssm.state_size", required=True),
    HParam("ssm.time_step_rank", required=True),
)
GROUPED_SSM_KEYS: Final = (*SSM_KEYS, HParam("ssm.group_count", required=True))
RECURRENT_LAYERS: Final = HParam("attention.recurrent_layers", form=Form.PER_LAYER)
FULL_ATTENTION_INTERVAL: Final = HParam("full_attention_interval", default=4)


def with_ssm(hp: HParams) -> HParams:
    """The sizes of a state space, from the keys that give them."""
    groups = "ssm.group_count"
    return replace(
        hp,
        ssm_d_conv=hp.u32("ssm.conv_kernel"),
        ssm_d_inner=hp.u32("ssm.inner_size"),
        ssm_d_state=hp.u32("ssm.state_size"),
        ssm_dt_rank=hp.u32("ssm.time_step_rank"),
        ssm_n_group=hp.u32(groups) if groups in hp.values else 0,
    )


def with_grouped_ssm(hp: HParams) -> HParams:
    """The sizes of a state space whose norm is per group. Raises MetadataError bad_value without groups."""
    hp = with_ssm(hp)
    if hp.ssm_n_group == 0:
        raise bad_value(hp.arch, "ssm.group_count", 0, "at least 1")
    return hp


def require_expansion_of_two(hp: HParams) -> None:
    """Refuse a state space that is not twice as wide as the model. Raises MetadataError bad_value."""
    if hp.ssm_d_inner != 2 * hp.n_embd:
        raise bad_value(
            hp.arch, "ssm.inner_size", hp.ssm_d_inner, f"{2 * hp.n_embd}, twice the embedding length {hp.n_embd}"
        )


def recurrent_by_interval(hp: HParams) -> HParams:
    """Recurrent layers as the file lists them, or all but every `full_attention_interval`-th of the trunk.

    Raises MetadataError bad_value where the interval decides and is zero.
    """
    flags = hp.array(RECURRENT_LAYERS.key)
    if flags is not None:
        return replace(hp, is_recr=tuple(bool(flag) for flag in flags))
    interval = hp.u32(FULL_ATTENTION_INTERVAL.key)
    if interval == 0:
        raise bad_value(hp.arch, FULL_ATTENTION_INTERVAL.key, 0, "at least 1")
    return replace(hp, is_recr=layers_where(hp.n_layer, hp.n_layer_all, interval))


def recurrent_without_keys(hp: HParams) -> HParams:
    """Recurrent layers are those of the trunk that have no key heads."""
    trunk = tuple(kv == 0 for kv in hp.n_head_kv[: hp.n_layer])
    return replace(hp, is_recr=trunk + (False,) * hp.n_layer_nextn)


def mamba(hp: HParams, layer: int, *, normed: bool = False) -> Iterator[Expected]:
    """A Mamba layer: one state per inner channel; with `normed`, norms on what selects it."""
    inner, state, rank = hp.ssm_d_inner, hp.ssm_d_state, hp.ssm_dt_rank
    yield need(roles.SSM_IN, layer, hp.n_embd, 2 * inner)
    yield need(roles.SSM_CONV1D, layer, hp.ssm_d_conv, inner)
    yield need(roles.SSM_CONV1D.bias, layer, inner)
    yield need(roles.SSM_X, layer, inner, rank + 2 * state)
    if normed:
        yield need(roles.SSM_DT_NORM, layer, rank)
    yield need(roles.SSM_DT, layer, rank, inner)
    yield need(roles.SSM_DT.bias, layer, inner)
    if normed:
        yield need(roles.SSM_B_NORM, layer, state)
        yield need(roles.SSM_C_NORM, layer, state)
    yield need(roles.SSM_A, layer, state, inner)
    yield need(roles.SSM_D.part(""), layer, inner)
    yield need(roles.SSM_OUT, layer, inner, hp.n_embd)


def mamba2(
    hp: HParams, layer: int, *, conv_bias: bool = True, norm: bool = True, required: bool = True
) -> Iterator[Expected]:
    """A Mamba 2 layer: one state per head; `conv_bias` and `norm` say whether those are required."""
    inner, heads, groups = hp.ssm_d_inner, hp.ssm_dt_rank, hp.ssm_n_group
    conv = inner + 2 * groups * hp.ssm_d_state
    yield tensor(roles.SSM_IN, layer, hp.n_embd, inner + conv + heads, required=required)
    yield tensor(roles.SSM_CONV1D, layer, hp.ssm_d_conv, conv, required=required)
    yield tensor(roles.SSM_CONV1D.bias, layer, conv, required=required and conv_bias)
    yield tensor(roles.SSM_DT.bias, layer, heads, required=required)
    yield tensor(roles.SSM_A, layer, 1, heads, required=required)
    yield tensor(roles.SSM_D.part(""), layer, 1, heads, required=required)
    yield tensor(roles.SSM_NORM, layer, inner // groups, groups, required=required and norm)
    yield tensor(roles.SSM_OUT, layer, inner, hp.n_embd, required=required)


def delta_widths(hp: HParams) -> tuple[int, int]:
    """The widths of all keys and of all values of a gated delta-rule layer."""
    return hp.ssm_d_state * hp.ssm_n_group, hp.ssm_d_state * hp.ssm_dt_rank


def delta_rule(hp: HParams, layer: int, *, projections: bool = False, required: bool = True) -> Iterator[Expected]:
    """A gated delta-rule layer with alpha and beta apart; `projections`: the fused QKV and the gate are required."""
    keys, values = delta_widths(hp)
    heads = hp.ssm_dt_rank
    yield tensor(roles.ATTN_QKV, layer, hp.n_embd, 2 * keys + values, required=projections)
    yield tensor(roles.ATTN_GATE, layer, hp.n_embd, values, required=projections)
    yield tensor(roles.SSM_CONV1D, layer, hp.ssm_d_conv, 2 * keys + values, required=required)
    yield tensor(roles.SSM_DT.bias, layer, heads, required=required)
    yield tensor(roles.SSM_A_NOSCAN, layer, heads, required=required)
    yield tensor(roles.SSM_BETA, layer, hp.n_embd, heads, required=required)
    yield tensor(roles.SSM_ALPHA, layer, hp.n_embd, heads, required=required)
    yield tensor(roles.SSM_NORM, layer, hp.ssm_d_state, required=required)
    yield tensor(roles.SSM_OUT, layer, values, hp.n_embd, required=required)


WKV_KEYS: Final = (
    HParam("wkv.head_size", required=True),
    HParam("token_shift_count", default=2),
)


def with_wkv(hp: HParams) -> HParams:
    """The sizes of an RWKV state."""
    return replace(hp, wkv_head_size=hp.u32("wkv.head_size"), token_shift_count=hp.u32("token_shift_count"))


def with_wkv_heads(hp: HParams) -> HParams:
    """The sizes of an RWKV state that is shaped by heads. Raises MetadataError bad_value without a head size."""
    if hp.u32("wkv.head_size") == 0:
        raise bad_value(hp.arch, "wkv.head_size", 0, "at least 1")
    return with_wkv(hp)


KDA_KEYS: Final = (HParam("ssm.conv_kernel", required=True), HParam("kda.head_dim", required=True))


def with_kda(hp: HParams) -> HParams:
    """The sizes of delta attention with a decay per channel."""
    return replace(hp, ssm_d_conv=hp.u32("ssm.conv_kernel"), n_embd_head_kda=hp.u32("kda.head_dim"))


def kda_inputs(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    """What feeds delta attention with a decay per channel: short convolutions, then Q, K and V."""
    inner = hp.n_embd_head_kda * hp.n_head[0]
    for role in (roles.SSM_CONV1D_Q, roles.SSM_CONV1D_K, roles.SSM_CONV1D_V):
        yield need(role, layer, hp.ssm_d_conv, 1, inner)
    yield from blocks.qkv(hp, names, layer, inner, inner, inner)


def kda(
    hp: HParams, names: Names, layer: int, *, decay: tuple[int, ...], gate: Iterable[Expected]
) -> Iterator[Expected]:
    """Delta attention with a decay per channel of low rank: `decay` is the shape of the heads' own decay."""
    head, n_head = hp.n_embd_head_kda, hp.n_head[0]
    inner = head * n_head
    yield from kda_inputs(hp, names, layer)
    yield need(roles.SSM_F_A, layer, hp.n_embd, head)
    yield need(roles.SSM_F_B, layer, head, inner)
    yield need(roles.SSM_BETA, layer, hp.n_embd, n_head)
    yield need(roles.SSM_A_NOSCAN, layer, *decay)
    yield need(roles.SSM_DT.bias, layer, inner)
    yield from gate
    yield need(roles.SSM_NORM, layer, head)
    yield need(roles.ATTN_OUT, layer, inner, hp.n_embd)


def low_rank_gate(hp: HParams, layer: int) -> Iterator[Expected]:
    """The output gate of delta attention, as a product of two narrow projections."""
    head = hp.n_embd_head_kda
    yield need(roles.SSM_G_A, layer, hp.n_embd, head)
    yield need(roles.SSM_G_B, layer, head, head * hp.n_head[0])


def lightning(hp: HParams, layer: int) -> Iterator[Expected]:
    """A linear-attention layer with one fused QKV, a norm after it and an output gate."""
    width = hp.n_embd_head_k() * hp.n_head[0]
    yield need(roles.ATTN_NORM_2, layer, width)
    yield need(roles.ATTN_QKV, layer, hp.n_embd, 3 * width)
    yield need(roles.ATTN_GATE, layer, hp.n_embd, width)


def short_convolution(hp: HParams, layer: int) -> Iterator[Expected]:
    """A gated short convolution in place of attention."""
    yield need(roles.SHORTCONV_CONV, layer, hp.n_shortconv_l_cache, hp.n_embd)
    yield need(roles.SHORTCONV_INPROJ, layer, hp.n_embd, 3 * hp.n_embd)
    yield need(roles.SHORTCONV_OUTPROJ, layer, hp.n_embd, hp.n_embd)
