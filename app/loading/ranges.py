"""Which stretches of a file a device maps for the tensors that are the mapping. Pure.

A mapped range is read in and locked whole, and each is a mapping and a descriptor. So one range covers many tensors,
from the first to the last, but what others own in between is left out where it is much.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from app.modelfile.types import TensorInfo
from app.units import MIB

WIDE_GAP_BYTES: Final = MIB
MAX_RANGES: Final = 16  # per device and shard; only the widest gaps are left out where there are more


def mapped_ranges(tensors: Sequence[TensorInfo], largest_bytes: int) -> Iterator[Sequence[TensorInfo]]:
    """The tensors of each range, for tensors of one shard in file order, none larger than `largest_bytes`.

    No range is longer than `largest_bytes`, however many that makes.
    """
    apart = _after_wide_gaps(tensors)
    first = 0
    for position, tensor in enumerate(tensors):
        if position > first and (
            position in apart or tensor.offset + tensor.nbytes - tensors[first].offset > largest_bytes
        ):
            yield tensors[first:position]
            first = position
    if tensors:
        yield tensors[first:]


def _after_wide_gaps(tensors: Sequence[TensorInfo]) -> set[int]:
    gaps: list[tuple[int, int]] = []
    end = tensors[0].offset if tensors else 0
    for position, tensor in enumerate(tensors):
        if tensor.offset - end >= WIDE_GAP_BYTES:
            gaps.append((tensor.offset - end, position))
        end = max(end, tensor.offset + tensor.nbytes)
    return {position for _, position in sorted(gaps, reverse=True)[: MAX_RANGES - 1]}
