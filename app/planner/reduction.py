"""Reductions: where partial results must be summed, and what that moves.

A product over a tensor that is cut along the axis it sums over leaves a partial result on every device with a part of
it. Which operation consumes a tensor is a fact of its role; where it is cut, of the plan.
"""

from collections.abc import Sequence
from typing import Final

from app.architectures.roles import Op
from app.planner.plan import Axis, Reduction, extent_along

_SUMS_OVER_AXIS_0: Final = frozenset({Op.MUL_MAT, Op.MUL_MAT_ID})
_RESULT_BYTES: Final = 4  # results are float32


def reduction(op: Op, axis: Axis, shape: Sequence[int], shares: Sequence[int]) -> Reduction | None:
    """What the use of a tensor of `shape`, cut along `axis` into `shares`, leaves to be summed; None: nothing.

    Experts are summed by their weights before the devices are: a token moves one result, however many it used.
    """
    n_devices = len(shares)
    if axis != 0 or op not in _SUMS_OVER_AXIS_0 or n_devices == 1:
        return None
    partials = sum(share > 0 for share in shares)
    result_bytes = _RESULT_BYTES * extent_along(shape, 1)
    moved = (max(partials, 1) - 1) + (n_devices - 1)
    return Reduction(partials=partials, result_bytes=result_bytes, bytes_per_token=result_bytes * moved)
