"""Stage 4, granularity: of what a boundary must be a multiple, for each run.

Attention is cut at whole groups of query heads that share a key head, and at whole quant blocks of the output
projection; everything that meets it (Q, K, V, their biases, the sinks) is cut at the same heads. Feed-forward is cut
at whole quant blocks of the down projection, in steps of at least 128 for the kernels' sake. Exceptions come first
(`SplitOverrides.granularity`). The arithmetic is the reference's (the function behind its tensor split).
"""

from collections.abc import Callable, Mapping
from math import lcm
from typing import Final

from app.architectures import cache_roles, roles
from app.architectures.roles import Role
from app.architectures.split import SplitOverrides
from app.errors import PlanError
from app.planner.plan import Segment, extent_along
from app.planner.segmentation import SplitContext

KERNEL_STEP: Final = 128  # below this many elements a kernel runs half empty

Steps = tuple[int, ...]
Rule = Callable[[SplitContext, int], tuple[Steps, str]]  # the context and how many segments there are

_FREE: Final = "any element"


def granulate(
    context: SplitContext, segments: tuple[Segment, ...], overrides: SplitOverrides
) -> tuple[tuple[int, ...], str]:
    """One step in elements per segment, and the sentence that explains it.

    Raises PlanError unsupported_split where heads or states have no size to cut by (the reference divides by zero).
    """
    role = context.tensor.role
    own = overrides.granularity.get(role)
    if own is not None:
        steps, why = own(context.as_cut()), overrides.why.get(role, "the architecture's own unit")
    else:
        table = _LINEAR if context.hparams.is_recr[context.layer] else _attention_table(context)
        rule = table.get(role) or _FFN.get(role)
        steps, why = rule(context, len(segments)) if rule is not None else ((1,), _FREE)
    if len(steps) != len(segments) or min(steps) < 1:
        raise PlanError(
            f"{context.tensor.tensor.name} cannot be split: {len(segments)} runs and the steps {list(steps)} "
            "do not go together",
            code="unsupported_split",
            tensor=context.tensor.tensor.name,
            expected=len(segments),
            found=len(steps),
        )
    return steps, why


def _attention_table(context: SplitContext) -> Mapping[Role, Rule]:
    hp, layer = context.hparams, context.layer
    if hp.n_gqa(layer) == 0 or hp.n_embd_head_k(layer) == 0:
        raise PlanError(
            f"{context.tensor.tensor.name} cannot be split: layer {layer} has no attention heads to cut by",
            code="unsupported_split",
            tensor=context.tensor.tensor.name,
            layer=layer,
        )
    return _ATTENTION


class _Heads:
    """The steps of one attention layer: `q` in elements of Q, and what follows from it."""

    __slots__ = ("block", "group", "head", "kv", "q", "v")

    def __init__(self, context: SplitContext) -> None:
        hp, layer = context.hparams, context.layer
        head_k = hp.n_embd_head_k(layer)
        self.group = hp.n_gqa(layer) * head_k
        # a larger step suits the kernels, but not at the price of devices that get nothing
        block = context.block_size
        while block < KERNEL_STEP and block * context.n_devices < self.group:
            block *= 2
        self.block = block
        self.q = lcm(self.group, block)
        self.head = self.q // head_k
        self.kv = self.q // hp.n_gqa(layer)
        # V is cut at the same heads as Q and K, whatever its own head size
        self.v = self.kv // head_k * hp.n_embd_head_v(layer)

    def why(self, unit: str) -> str:
        """The sentence for a step made of whole heads."""
        return f"{unit}: whole head groups ({self.group} of Q) and whole blocks of the output projection ({self.block})"


def _q_step(context: SplitContext, heads: _Heads) -> int:
    return lcm(context.capabilities.q_parts * heads.group, heads.block)


def _q(context: SplitContext, _count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    step = _q_step(context, heads)
    gate = " with its gate" if context.capabilities.q_gate else ""
    return (step,), heads.why(f"{step} rows of Q{gate}")


def _k(context: SplitContext, _count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    return (heads.kv,), heads.why(f"{heads.kv} rows of K")


def _v(context: SplitContext, _count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    return (heads.v,), heads.why(f"{heads.v} rows of V")


def _cached_k(context: SplitContext, _count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    return (heads.kv,), heads.why(f"{heads.kv} values of each token's K")


def _cached_v(context: SplitContext, _count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    return (heads.v,), heads.why(f"{heads.v} values of each token's V")


def _qkv(context: SplitContext, count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    step = _q_step(context, heads)
    if count == 3:
        return (step, heads.kv, heads.v), heads.why(f"{step} rows of Q, {heads.kv} of K, {heads.v} of V")
    return (step, heads.kv), heads.why(f"{step} rows of Q, {heads.kv} of K and V")


def _sinks(context: SplitContext, _count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    return (heads.head,), heads.why(f"{heads.head} heads")


def _output(context: SplitContext, _count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    step = heads.head * context.hparams.n_embd_head_v(context.layer)
    return (step,), heads.why(f"{step} columns")


def _gate(context: SplitContext, _count: int) -> tuple[Steps, str]:
    heads = _Heads(context)
    if extent_along(context.tensor.tensor.shape, 1) == context.hparams.n_head[context.layer]:
        return (heads.head,), heads.why(f"{heads.head} heads")
    return (heads.q,), heads.why(f"{heads.q} rows")


_ATTENTION: Final[Mapping[Role, Rule]] = {
    roles.ATTN_Q: _q,
    roles.ATTN_Q.bias: _q,
    roles.ATTN_K: _k,
    roles.ATTN_K.bias: _k,
    roles.ATTN_V: _v,
    roles.ATTN_V.bias: _v,
    roles.ATTN_QKV: _qkv,
    roles.ATTN_QKV.bias: _qkv,
    roles.ATTN_SINKS: _sinks,
    roles.ATTN_OUT: _output,
    roles.ATTN_GATE: _gate,
    cache_roles.CACHE_K: _cached_k,
    cache_roles.CACHE_INDEXER_K: _cached_k,
    cache_roles.CACHE_V: _cached_v,
    cache_roles.CACHE_INDEXER_V: _cached_v,
}


def _state_step(context: SplitContext) -> int:
    """Elements of the linear attention's inner width that are cut together: whole heads and whole quant blocks."""
    head_dim = context.hparams.ssm_d_state
    if head_dim == 0:
        raise PlanError(
            f"{context.tensor.tensor.name} cannot be split: the recurrent state has no head size to cut by",
            code="unsupported_split",
            tensor=context.tensor.tensor.name,
            layer=context.layer,
        )
    return lcm(context.block_size, KERNEL_STEP, head_dim)


def _state_rows(context: SplitContext, count: int) -> tuple[Steps, str]:
    step = _state_step(context)
    return (step,) * count, f"{step} elements: whole state heads and whole blocks of the output projection"


def _state_heads(context: SplitContext, count: int) -> tuple[Steps, str]:
    heads = _state_step(context) // context.hparams.ssm_d_state
    return (heads,) * count, f"{heads} state heads, as the output projection is cut"


def _state_head_pairs(context: SplitContext, count: int) -> tuple[Steps, str]:
    pairs = 2 * (_state_step(context) // context.hparams.ssm_d_state)
    return (pairs,) * count, f"{pairs} rows: beta and alpha of the state heads that are cut together"


def _cached_inputs(context: SplitContext, count: int) -> tuple[Steps, str]:
    step = _state_step(context) * (context.hparams.ssm_d_conv - 1)
    return (step,) * count, f"{step} values: the last inputs of the state heads that are cut together"


def _cached_states(context: SplitContext, count: int) -> tuple[Steps, str]:
    step = _state_step(context) * context.hparams.ssm_d_state
    return (step,) * count, f"{step} values: whole states of the heads that are cut together"


_LINEAR: Final[Mapping[Role, Rule]] = {
    **dict.fromkeys((roles.ATTN_QKV, roles.ATTN_GATE, roles.SSM_CONV1D, roles.SSM_OUT), _state_rows),
    **dict.fromkeys(
        (roles.SSM_DT.bias, roles.SSM_A, roles.SSM_A_NOSCAN, roles.SSM_ALPHA, roles.SSM_BETA), _state_heads
    ),
    roles.SSM_BETA_ALPHA: _state_head_pairs,
    cache_roles.CACHE_R: _cached_inputs,
    cache_roles.CACHE_S: _cached_states,
}


def _ffn(context: SplitContext, _count: int) -> tuple[Steps, str]:
    step = lcm(context.block_size, KERNEL_STEP)
    return (step,), f"{step} hidden units: whole blocks of the down projection ({context.block_size}), at least 128"


_FFN: Final[Mapping[Role, Rule]] = dict.fromkeys(
    (
        roles.FFN_UP,
        roles.FFN_UP_EXPS,
        roles.FFN_UP.bias,
        roles.FFN_UP_EXPS.bias,
        roles.FFN_GATE,
        roles.FFN_GATE_EXPS,
        roles.FFN_GATE.bias,
        roles.FFN_GATE_EXPS.bias,
        roles.FFN_GATE_UP_EXPS,
        roles.FFN_DOWN,
        roles.FFN_DOWN_EXPS,
        roles.FFN_UP_SHEXP,
        roles.FFN_GATE_SHEXP,
        roles.FFN_DOWN_SHEXP,
    ),
    _ffn,
)
