"""Stage 3, segmentation: the runs of a fused tensor that must each be cut on their own.

A tensor that holds several projections one after another (Q, K and V; gate and up) is cut once per part, so that
every device gets a whole share of each. Exceptions come first (`SplitOverrides.segments`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from app.architectures import cache_roles, roles
from app.architectures.descriptor import Capabilities
from app.architectures.hparams import HParams
from app.architectures.roles import Role
from app.architectures.split import Cut, SplitOverrides
from app.errors import PlanError
from app.planner.plan import Classified, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitContext:
    """One tensor about to be cut: what stages 3 and 4 are asked about.

    `extent` is the tensor's length along its axis in elements, `block_size` the anchor's quant block.
    """

    tensor: Classified
    axis: int
    extent: int
    block_size: int
    n_devices: int
    hparams: HParams
    capabilities: Capabilities

    @property
    def layer(self) -> int:
        """The layer whose heads and widths apply; model-level tensors ask the first."""
        return self.tensor.layer or 0

    def as_cut(self) -> Cut:
        """The same question as an architecture's exception gets it."""
        return Cut(
            hparams=self.hparams,
            layer=self.layer,
            extent=self.extent,
            block_size=self.block_size,
            n_devices=self.n_devices,
        )


Runs = tuple[tuple[int, int], ...]
Rule = Callable[[SplitContext], tuple[Runs, str]]

WHOLE: Final = "one run"


def segment(context: SplitContext, overrides: SplitOverrides) -> tuple[tuple[Segment, ...], str]:
    """The runs along the axis and the sentence that explains them.

    Raises PlanError unsupported_split where the parts do not add up to the tensor (the reference aborts there).
    """
    role = context.tensor.role
    own = overrides.segments.get(role)
    if own is not None:
        runs, why = own(context.as_cut()), overrides.why.get(role, "the architecture's own layout")
    else:
        rule = _rules(context).get(role)
        runs, why = rule(context) if rule is not None else (((context.extent, 1),), WHOLE)
    total = sum(extent * repeats for extent, repeats in runs)
    if total != context.extent:
        parts = " + ".join(f"{repeats}×{extent}" if repeats > 1 else str(extent) for extent, repeats in runs)
        raise PlanError(
            f"{context.tensor.tensor.name} cannot be split: it has {context.extent} elements along axis "
            f"{context.axis}, its parts {parts} make {total}",
            code="unsupported_split",
            tensor=context.tensor.tensor.name,
            expected=total,
            found=context.extent,
        )
    return tuple(Segment(extent, repeats) for extent, repeats in runs), why


def _rules(context: SplitContext) -> Mapping[Role, Rule]:
    if not context.capabilities.linear_attention:
        return _ATTENTION
    if not context.capabilities.is_linear(context.hparams, context.layer):
        return _BESIDE_LINEAR
    return _LINEAR_V_ON_K if context.capabilities.v_follows_k else _LINEAR


def _qkv(context: SplitContext) -> tuple[Runs, str]:
    hp, layer = context.hparams, context.layer
    n_q = context.capabilities.q_parts * hp.n_head[layer] * hp.n_embd_head_k(layer)
    n_k, n_v = hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer)
    with_gate = " with its gate" if context.capabilities.q_gate else ""
    if n_k == n_v:
        return ((n_q, 1), (n_k, 2)), f"Q{with_gate}, then K and V of equal width"
    return ((n_q, 1), (n_k, 1), (n_v, 1)), f"Q{with_gate}, K and V, each of its own width"


def _fused_up(context: SplitContext) -> tuple[Runs, str]:
    if context.hparams.is_fused_up(context.layer, context.extent):
        return ((context.hparams.n_ff[context.layer], 2),), "gate and up fused in one tensor"
    return ((context.extent, 1),), WHOLE


def _gate_up(context: SplitContext) -> tuple[Runs, str]:
    return ((context.hparams.n_ff_exp[context.layer], 2),), "gate and up of the experts fused in one tensor"


_FUSED_FFN: Final[Mapping[Role, Rule]] = {
    roles.FFN_UP: _fused_up,
    roles.FFN_UP_EXPS: _fused_up,
    roles.FFN_UP.bias: _fused_up,
    roles.FFN_UP_EXPS.bias: _fused_up,
    roles.FFN_GATE_UP_EXPS: _gate_up,
}
_ATTENTION: Final[Mapping[Role, Rule]] = {roles.ATTN_QKV: _qkv, roles.ATTN_QKV.bias: _qkv, **_FUSED_FFN}
# full-attention layers of models with linear attention; their dense feed-forward is never fused
_BESIDE_LINEAR: Final[Mapping[Role, Rule]] = {
    roles.ATTN_QKV: _qkv,
    roles.ATTN_QKV.bias: _qkv,
    roles.FFN_GATE_UP_EXPS: _gate_up,
}


def _linear_qkv(context: SplitContext) -> tuple[Runs, str]:
    keys, values, _ = context.hparams.linear_widths
    return ((keys, 2), (values, 1)), "Q and K of the linear attention, then V"


def _linear_qkv_on_k(context: SplitContext) -> tuple[Runs, str]:
    keys, _, ratio = context.hparams.linear_widths
    return ((keys, 2 + ratio),), "Q, K and V of the linear attention, V in runs of K's width"


def _linear_values_on_k(context: SplitContext) -> tuple[Runs, str]:
    keys, _, ratio = context.hparams.linear_widths
    return ((keys, ratio),), "value heads in runs of K's width"


def _linear_heads_on_k(context: SplitContext) -> tuple[Runs, str]:
    _, _, ratio = context.hparams.linear_widths
    return ((context.hparams.ssm_n_group, ratio),), "one value per value head, in runs of the key heads"


def _cached_inputs(context: SplitContext) -> tuple[Runs, str]:
    keys, values, _ = context.hparams.linear_widths
    past = context.hparams.ssm_d_conv - 1
    return ((keys * past, 2), (values * past, 1)), "the last inputs of Q and K of the linear attention, then of V"


def _cached_inputs_on_k(context: SplitContext) -> tuple[Runs, str]:
    keys, _, ratio = context.hparams.linear_widths
    past = context.hparams.ssm_d_conv - 1
    return ((keys * past, 2 + ratio),), "the last inputs of Q, K and V of the linear attention, V in runs of K's width"


def _cached_states_on_k(context: SplitContext) -> tuple[Runs, str]:
    hp = context.hparams
    _, _, ratio = context.hparams.linear_widths
    return ((hp.ssm_n_group * hp.ssm_d_state * hp.ssm_d_state, ratio),), "a state per value head, in runs of key heads"


_LINEAR: Final[Mapping[Role, Rule]] = {
    roles.ATTN_QKV: _linear_qkv,
    roles.SSM_CONV1D: _linear_qkv,
    cache_roles.CACHE_R: _cached_inputs,
    roles.FFN_GATE_UP_EXPS: _gate_up,
}
_LINEAR_V_ON_K: Final[Mapping[Role, Rule]] = {
    roles.ATTN_QKV: _linear_qkv_on_k,
    roles.SSM_CONV1D: _linear_qkv_on_k,
    cache_roles.CACHE_R: _cached_inputs_on_k,
    cache_roles.CACHE_S: _cached_states_on_k,
    roles.ATTN_GATE: _linear_values_on_k,
    roles.SSM_OUT: _linear_values_on_k,
    **dict.fromkeys(
        (roles.SSM_DT.bias, roles.SSM_A, roles.SSM_A_NOSCAN, roles.SSM_ALPHA, roles.SSM_BETA), _linear_heads_on_k
    ),
    roles.FFN_GATE_UP_EXPS: _gate_up,
}
