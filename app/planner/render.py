"""A plan as JSON: the stable contract, in one place."""

from typing import Any

from app.planner.plan import PlannedTensor, SplitPlan, Why


def plan_json(plan: SplitPlan) -> dict[str, Any]:
    """The parts of a plan's answer that the planner knows.

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
        "audit": [],
    }


def tensor_json(tensor: PlannedTensor) -> dict[str, Any]:
    """One planned tensor or cache."""
    return {
        "name": tensor.name,
        "type": tensor.type.name,
        "shape": [*tensor.shape],
        "bytes": tensor.nbytes,
        "role": tensor.role,
        "layer": tensor.layer,
        "device": tensor.device,
        "axis": tensor.axis,
        "segments": [{"extents": [*part.extents], "repeats": part.repeats} for part in tensor.segments],
        "granularity": [*tensor.granularity],
        "rotation": tensor.rotation,
        "bytes_per_device": [*tensor.bytes_per_device],
        "why": why_json(tensor.why),
    }


def why_json(why: Why) -> dict[str, str]:
    """The reasons of the decisions that were made for a tensor, by stage."""
    return {
        "policy": why.policy,
        "segmentation": why.segmentation,
        "granularity": why.granularity,
        "allocation": why.allocation,
    }
