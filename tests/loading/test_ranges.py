from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ggml import BY_NAME
from app.loading.ranges import MAX_RANGES, WIDE_GAP_BYTES, mapped_ranges
from app.modelfile.types import TensorInfo
from app.units import MIB

HUGE = 1 << 60


def at(offset: int, nbytes: int = 4096) -> TensorInfo:
    return TensorInfo(name=f"t{offset}", type=BY_NAME["i8"], shape=(nbytes,), shard=0, offset=offset, nbytes=nbytes)


@given(
    gaps=st.lists(st.sampled_from((0, 32, WIDE_GAP_BYTES - 1, WIDE_GAP_BYTES, 3 * MIB)), max_size=40),
    sizes=st.lists(st.integers(1, 2 * MIB), min_size=40, max_size=40),
    largest=st.sampled_from((2 * MIB, 5 * MIB, HUGE)),
)
def test_ranges_partition_the_tensors(gaps: list[int], sizes: list[int], largest: int) -> None:
    """Every tensor is in exactly one range, in order; no range is too long; there are no more ranges than need be."""
    tensors, end = [], 64
    for gap, size in zip(gaps, sizes, strict=False):
        tensors.append(at(end + gap, size))
        end += gap + size
    found = list(mapped_ranges(tensors, largest))
    assert tensors == [tensor for group in found for tensor in group]
    spans = [(group[0].offset, group[-1].offset + group[-1].nbytes) for group in found]
    assert all(stop - start <= largest for start, stop in spans)
    if largest == HUGE:
        assert len(found) <= MAX_RANGES
        assert all(after - before >= WIDE_GAP_BYTES for (_, before), (after, _) in pairwise(spans))


def test_what_others_own_in_between_is_left_out() -> None:
    """An embedding at the start used again beside the last layers is two ranges, not the whole file."""
    tensors = [at(0), at(100 * MIB), at(100 * MIB + 8192)]
    assert [tensors[:1], tensors[1:]] == [list(group) for group in mapped_ranges(tensors, HUGE)]


def test_the_widest_gaps_go_first() -> None:
    """Where there are more gaps than ranges may be, only the widest are left out."""
    wide = {n * 10 for n in range(1, MAX_RANGES)}
    offsets = [n * 2 * MIB + sum(50 * MIB for edge in wide if edge <= n) for n in range(200)]
    found = list(mapped_ranges([at(offset) for offset in offsets], HUGE))
    assert [offsets[0], *(offsets[edge] for edge in sorted(wide))] == [group[0].offset for group in found]


@pytest.mark.parametrize("largest", [1, HUGE])
def test_nothing_to_map_is_no_range(largest: int) -> None:
    """No tensors, no range."""
    assert [] == list(mapped_ranges([], largest))
