"""Mixtures of experts: the keys that size them, and the tensors beside the routed experts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from app.architectures import blocks, roles
from app.architectures.blocks import tensor
from app.architectures.common import bad_value
from app.architectures.hparams import Form, HParam, HParams, Kind
from app.architectures.manifest import Expected

EXPERT_FF: Final = HParam("expert_feed_forward_length", form=Form.PER_LAYER)
SHARED_FF: Final = HParam("expert_shared_feed_forward_length", default=0)
SHARED_COUNT: Final = HParam("expert_shared_count", default=0)
LEADING_DENSE: Final = HParam("leading_dense_block_count", default=0)
WEIGHTS_SCALE: Final = HParam("expert_weights_scale", Kind.F32)
WEIGHTS_NORM: Final = HParam("expert_weights_norm", Kind.BOOL)
GATING_FUNC: Final = HParam("expert_gating_func", default=0)
CLAMP_EXPERTS: Final = HParam("swiglu_clamp_exp", Kind.F32, form=Form.PER_LAYER)
CLAMP_SHARED: Final = HParam("swiglu_clamp_shexp", Kind.F32, form=Form.PER_LAYER)
EXPERT_FF_REQUIRED: Final = replace(EXPERT_FF, required=True)
SHARED_COUNT_REQUIRED: Final = replace(SHARED_COUNT, required=True)
GATING_FUNC_REQUIRED: Final = replace(GATING_FUNC, required=True)


def with_expert_widths(hp: HParams) -> HParams:
    """The width of an expert in every layer, 0 where the file does not say."""
    return replace(hp, n_ff_exp=hp.array(EXPERT_FF.key) or (0,) * hp.n_layer_all)


def expert_width(hp: HParams, layer: int = 0) -> int:
    """The width of an expert: its own, else its share of the dense width among the experts used.

    Raises MetadataError bad_value where neither is given.
    """
    if hp.n_ff_exp[layer]:
        return hp.n_ff_exp[layer]
    used = hp.n_expert_used[layer]
    if used == 0:
        raise bad_value(hp.arch, "expert_used_count", 0, f"at least 1, or {EXPERT_FF.key} given")
    return hp.n_ff[layer] // used


def require_experts(hp: HParams) -> None:
    """Refuse a model without experts. Raises MetadataError bad_value."""
    if hp.n_expert == 0:
        raise bad_value(hp.arch, "expert_count", 0, "at least 1")


def only_experts(hp: HParams) -> HParams:
    """The widths of the experts of a model whose every token is routed. Raises MetadataError bad_value without any."""
    require_experts(hp)
    if hp.n_expert_used[0] == 0:
        raise bad_value(hp.arch, "expert_used_count", 0, f"1 to {hp.n_expert} in the first layer")
    return with_expert_widths(hp)


def experts_after_dense(hp: HParams) -> HParams:
    """The widths of experts in the layers after the leading dense ones; raises MetadataError where these have none."""
    return only_experts(hp) if hp.u32(LEADING_DENSE.key) < hp.n_layer else with_expert_widths(hp)


def is_dense(hp: HParams, layer: int) -> bool:
    """Whether `layer` is one of the leading layers without experts."""
    return layer < hp.u32(LEADING_DENSE.key)


def routed(hp: HParams, layer: int, n_ff_exp: int, *, required: bool = True) -> Iterator[Expected]:
    """The router, then the experts it chooses from."""
    yield from router(hp, layer, required=required)
    yield from blocks.experts(hp, layer, n_ff_exp, required=required)


def router(hp: HParams, layer: int, *, biased: bool = False, required: bool = True) -> Iterator[Expected]:
    """The router of the experts; with `biased`, the bias of its choice."""
    yield tensor(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert, required=required)
    if biased:
        yield tensor(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert, required=required)


def shared_expert(hp: HParams, layer: int, n_ff: int, *, required: bool = True) -> Iterator[Expected]:
    """The experts every token goes through, as one gated feed-forward of width `n_ff`."""
    yield tensor(roles.FFN_GATE_SHEXP, layer, hp.n_embd, n_ff, required=required)
    yield tensor(roles.FFN_DOWN_SHEXP, layer, n_ff, hp.n_embd, required=required)
    yield tensor(roles.FFN_UP_SHEXP, layer, hp.n_embd, n_ff, required=required)
