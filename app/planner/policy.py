"""Stage 2, policy: along which axis a tensor is cut, and whose quant block limits the cut.

The rule of the house: everything that meets in a layer's output or down projection is cut in lockstep, so that
projection is the anchor. The standard table is keyed by role; an architecture's exceptions come first
(`SplitOverrides.policy`). The table's facts are the reference's (the function behind its tensor split).
"""

from collections.abc import Mapping
from typing import Final

from app.architectures import cache_roles, roles
from app.architectures.roles import Role
from app.architectures.split import PolicyRule, SplitOverrides
from app.errors import PlanError
from app.planner.classification import Peers
from app.planner.plan import Classified, Policy, extent_along

_ATTENTION = (roles.ATTN_OUT, roles.SSM_OUT)
_STATE = (roles.SSM_OUT,)
_FFN = (roles.FFN_DOWN, roles.FFN_DOWN_EXPS)

_HEADS_OUT = "rows are heads: cut so that each device's heads meet its part of the output projection"
_HEADS_BIAS = "one value per row of its projection, cut with it"
_STATE_ROWS = "rows belong to heads of the recurrent state, cut with its output projection"
_FFN_ROWS = "rows are hidden units: cut in lockstep with the down projection"
_PARTIAL_SUMS = "columns are cut: each device sums over its own part, and the sums are added"
_HEADS_CACHED = "one run per head and token: on the device that computes the head"
_STATE_CACHED = "state of the heads that a device computes, cut with their output projection"
_AFTER_SUM = "added after the partial sums are joined: every device holds all of it"

STANDARD: Final[Mapping[Role, PolicyRule]] = {
    **{
        role: PolicyRule(axis=1, anchors=_ATTENTION, why=_HEADS_OUT)
        for role in (roles.ATTN_Q, roles.ATTN_K, roles.ATTN_V, roles.ATTN_QKV, roles.ATTN_GATE)
    },
    **{
        role.bias: PolicyRule(axis=0, anchors=_ATTENTION, why=_HEADS_BIAS)
        for role in (roles.ATTN_Q, roles.ATTN_K, roles.ATTN_V, roles.ATTN_QKV)
    },
    roles.ATTN_SINKS: PolicyRule(axis=0, anchors=(roles.ATTN_OUT,), why="one value per head, cut with the heads"),
    roles.ATTN_OUT: PolicyRule(axis=0, why=_PARTIAL_SUMS),
    roles.ATTN_OUT.bias: PolicyRule(axis="mirrored", why=_AFTER_SUM),
    **{
        role: PolicyRule(axis=0, anchors=_STATE, why=_STATE_ROWS)
        for role in (roles.SSM_DT.bias, roles.SSM_A, roles.SSM_A_NOSCAN)
    },
    **{
        role: PolicyRule(axis=1, anchors=_STATE, why=_STATE_ROWS)
        for role in (roles.SSM_ALPHA, roles.SSM_BETA, roles.SSM_BETA_ALPHA, roles.SSM_CONV1D)
    },
    roles.SSM_OUT: PolicyRule(axis=0, why=_PARTIAL_SUMS),
    **{
        role: PolicyRule(axis=1, anchors=_FFN, why=_FFN_ROWS)
        for role in (
            roles.FFN_UP,
            roles.FFN_UP_EXPS,
            roles.FFN_GATE,
            roles.FFN_GATE_EXPS,
            roles.FFN_GATE_UP_EXPS,
        )
    },
    **{
        role.bias: PolicyRule(axis=0, anchors=_FFN, why=_FFN_ROWS)
        for role in (roles.FFN_UP, roles.FFN_UP_EXPS, roles.FFN_GATE, roles.FFN_GATE_EXPS)
    },
    roles.FFN_DOWN: PolicyRule(axis=0, anchors=_FFN, why=_PARTIAL_SUMS),
    roles.FFN_DOWN_EXPS: PolicyRule(axis=0, anchors=_FFN, why=_PARTIAL_SUMS),
    roles.FFN_DOWN.bias: PolicyRule(axis="mirrored", why=_AFTER_SUM),
    roles.FFN_DOWN_EXPS.bias: PolicyRule(
        axis="partial",
        anchors=(roles.FFN_DOWN_EXPS,),
        why="added inside the partial sums of the experts: the devices that hold a part of them share it",
    ),
    roles.OUTPUT: PolicyRule(axis=1, why="rows are the vocabulary: each device computes its part of the logits"),
    roles.OUTPUT.bias: PolicyRule(
        axis=0, anchors=(roles.OUTPUT,), why="one value per row of the output projection, cut with it"
    ),
    **{
        role: PolicyRule(axis=0, anchors=(roles.ATTN_OUT,), why=_HEADS_CACHED)
        for role in (
            cache_roles.CACHE_K,
            cache_roles.CACHE_V,
            cache_roles.CACHE_INDEXER_K,
            cache_roles.CACHE_INDEXER_V,
        )
    },
    **{
        role: PolicyRule(axis=0, anchors=_STATE, why=_STATE_CACHED)
        for role in (cache_roles.CACHE_R, cache_roles.CACHE_S)
    },
    cache_roles.CACHE_IDX_K: PolicyRule(
        axis="mirrored", why="keys of an indexer with a single head, which every device computes whole"
    ),
    cache_roles.CACHE_PLE_R: PolicyRule(
        axis="mirrored", why="every device runs the whole convolution and needs its whole past"
    ),
}

_NORMED_HEADS: Final = frozenset({roles.ATTN_Q_NORM, roles.ATTN_K_NORM})
_ELSEWHERE: Final = PolicyRule(axis="mirrored", why="every device needs all of it")


def decide_policy(tensor: Classified, peers: Peers, overrides: SplitOverrides, rotation: int) -> Policy:
    """The axis, the anchor and the rotation of one tensor.

    `peers` are the tensors of its layer; `rotation` is its layer's. Raises PlanError unsupported_split where the
    anchor that the rule needs is not in the layer (the reference aborts there).
    """
    if overrides.mirrored is not None:
        return Policy(axis="mirrored", anchor=tensor.tensor, rotation=0, reason=overrides.mirrored)
    rule = overrides.policy.get(tensor.role) or _standard(tensor)
    anchor = tensor.tensor
    if rule.anchors:
        found = peers.first(rule.anchors)
        if found is None:
            wanted = " or ".join(role.tensor_name(tensor.layer) for role in rule.anchors)
            raise PlanError(
                f"{tensor.tensor.name} cannot be split: it is cut in lockstep with {wanted}, which the file lacks",
                code="unsupported_split",
                tensor=tensor.tensor.name,
                expected=wanted,
            )
        anchor = found
    return Policy(axis=rule.axis, anchor=anchor, rotation=rotation, reason=rule.why)


def _standard(tensor: Classified) -> PolicyRule:
    if tensor.role in _NORMED_HEADS:
        # a norm per head has a row for each head and is cut with them; one shared by all heads is mirrored
        per_head = extent_along(tensor.tensor.shape, 1) != 1
        return PolicyRule(
            axis=1 if per_head else "mirrored",
            anchors=(roles.ATTN_OUT,),
            why="one norm per head, cut with the heads" if per_head else "one norm for all heads",
        )
    return STANDARD.get(tensor.role, _ELSEWHERE)
