"""A plan as JSON: the stable contract, in one place."""

from collections.abc import Sequence
from typing import Any

from app.planner.audit import Proof
from app.planner.plan import PlannedTensor, Reduction, SplitPlan, Why


def plan_json(plan: SplitPlan, proofs: Sequence[Proof] = ()) -> dict[str, Any]:
    """The parts of a plan's answer that the planner knows, with the proofs about it.

    `shortfall_bytes` is by device name and holds every device of `devices`; `bytes_per_device` and `extents` follow
    the request's devices in order. Sizes are exact bytes; extents are elements along the axis.
    """
    return {
        "fits": plan.fits,
        "shortfall_bytes": {total.name: total.shortfall_bytes for total in plan.totals},
        "devices": [
            {
                "name": total.name,
                "weights_bytes": total.weights_bytes,
                "cache_bytes": total.cache_bytes,
                "total_bytes": total.total_bytes,
                "free_bytes": total.free_bytes,
                "fits": total.shortfall_bytes == 0,
                "shortfall_bytes": total.shortfall_bytes,
            }
            for total in plan.totals
        ],
        "tensors": [tensor_json(tensor) for tensor in plan.tensors],
        "caches": [tensor_json(cache) for cache in plan.caches],
        "warnings": [*plan.warnings],
        "audit": [proof.as_json() for proof in proofs],
    }


def tensor_json(tensor: PlannedTensor) -> dict[str, Any]:
    """One planned tensor or cache."""
    return {
        "name": tensor.name,
        "type": tensor.type.name,
        "shape": [*tensor.shape],
        "bytes": tensor.nbytes,
        "role": tensor.role,
        "op": tensor.op.value,
        "layer": tensor.layer,
        "device": tensor.device,
        "axis": tensor.axis,
        "segments": [{"extents": [*part.extents], "repeats": part.repeats} for part in tensor.segments],
        "granularity": [*tensor.granularity],
        "rotation": tensor.rotation,
        "bytes_per_device": [*tensor.bytes_per_device],
        "reduce_after": reduction_json(tensor.reduce_after),
        "why": why_json(tensor.why),
    }


def reduction_json(reduction: Reduction | None) -> dict[str, int] | None:
    """What must be summed after a tensor was used; null where nothing must."""
    if reduction is None:
        return None
    return {
        "partials": reduction.partials,
        "result_bytes": reduction.result_bytes,
        "bytes_per_token": reduction.bytes_per_token,
    }


def why_json(why: Why) -> dict[str, str]:
    """The reasons of the decisions that were made for a tensor, by stage."""
    return {
        "policy": why.policy,
        "segmentation": why.segmentation,
        "granularity": why.granularity,
        "allocation": why.allocation,
    }
