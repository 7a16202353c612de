"""Stage 5, allocation: where the boundaries fall, and so what each device gets.

Bit for bit the reference's arithmetic, float32 included (the function behind its tensor split).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np


def allocate(extent: int, granularity: int, weights: Sequence[float], n_devices: int, rotation: int) -> tuple[int, ...]:
    """Shares of `extent` elements, per device in request order; they add up to `extent`.

    Boundaries are laid out in rotated order (device `rotation` first), each rounded down to `granularity`; the last
    device in rotated order takes the rest. `weights` is empty for an even split; a sum of zero counts as empty, and
    it must be a finite float32. A share may be zero.
    """
    scan = _scan(tuple(weights), rotation) if weights else ()
    shares = [0] * n_devices
    low = 0
    for j in range(n_devices - 1):
        high = _weighted(extent, scan[j], scan[-1]) if scan else extent * (j + 1) // n_devices
        # beyond float32's whole numbers a boundary can be rounded past its neighbours: no share is negative
        high = min(max(high, low), extent)
        high -= high % granularity
        shares[(j + rotation) % n_devices] = high - low
        low = high
    shares[(n_devices - 1 + rotation) % n_devices] = extent - low
    return tuple(shares)


@lru_cache(maxsize=1024)
def _scan(weights: tuple[float, ...], rotation: int) -> tuple[np.float32, ...]:
    """Running float32 sums of the weights in rotated order; empty if they add up to zero."""
    total = np.float32(0)
    sums = []
    for j in range(len(weights)):
        total = np.float32(total + np.float32(weights[(j + rotation) % len(weights)]))
        sums.append(total)
    return tuple(sums) if total != 0 else ()


@lru_cache(maxsize=4096)
def _weighted(extent: int, part: np.float32, whole: np.float32) -> int:
    with np.errstate(over="ignore"):
        product = np.float32(extent) * part
    if np.isinf(product):  # ratios so large that the reference's arithmetic has no answer
        return int(extent * (float(part) / float(whole)))
    return int(product / whole)


def describe(extent: int, shares: Sequence[int], granularity: int, weights: Sequence[float], rotation: int) -> str:
    """The sentence that explains the shares."""
    ratio = f"by ratios {':'.join(f'{weight:g}' for weight in weights)}" if any(weights) else "even"
    turn = f", device {rotation} first" if rotation else ""
    return f"{ratio}{turn}, in steps of {granularity}: {'/'.join(map(str, shares))} of {extent}"
