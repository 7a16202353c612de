"""The last stage alone: what must hold for every cut, and the reference's numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.planner.allocation import allocate

RATIOS = st.one_of(st.floats(0, 1e6, width=32), st.floats(0, float(2**123), width=32))
WEIGHTS = st.lists(RATIOS, min_size=1, max_size=16)


@given(st.integers(0, 2**40), st.integers(1, 4096), WEIGHTS, st.integers(0, 15))
def test_shares_add_up(extent: int, granularity: int, weights: list[float], rotation: int) -> None:
    """Whatever the ratios, the shares of all devices add up to the extent, and none is negative."""
    shares = allocate(extent, granularity, weights, len(weights), rotation % len(weights))
    assert sum(shares) == extent
    assert min(shares) >= 0


@given(st.integers(0, 2**40), st.integers(1, 4096), st.integers(1, 16), st.integers(0, 15))
def test_boundaries_are_multiples_of_the_granularity(
    extent: int, granularity: int, n_devices: int, rotation: int
) -> None:
    """Every share but that of the last device in rotated order is a multiple of the granularity."""
    first = rotation % n_devices
    shares = allocate(extent, granularity, (), n_devices, first)
    last = (first + n_devices - 1) % n_devices
    assert all(share % granularity == 0 for device, share in enumerate(shares) if device != last)


@given(st.integers(0, 2**30), st.integers(1, 4096), st.integers(1, 16), st.integers(0, 15))
def test_rotation_turns_the_devices_and_nothing_else(
    extent: int, granularity: int, n_devices: int, rotation: int
) -> None:
    """An even cut under a rotation is the unrotated cut with the devices moved on by it."""
    first = rotation % n_devices
    plain = allocate(extent, granularity, (), n_devices, 0)
    turned = allocate(extent, granularity, (), n_devices, first)
    assert plain == tuple(turned[(device + first) % n_devices] for device in range(n_devices))


@pytest.mark.parametrize(
    ("extent", "granularity", "weights", "n_devices", "rotation", "expected"),
    [
        (128, 128, (), 2, 0, (0, 128)),
        (128, 128, (), 2, 1, (128, 0)),
        (384, 128, (), 2, 0, (128, 256)),
        (640, 128, (), 3, 0, (128, 256, 256)),
        (640, 128, (), 3, 2, (256, 256, 128)),
        (512, 256, (), 3, 0, (0, 256, 256)),
        (32003, 1, (), 2, 0, (16001, 16002)),
        (32003, 1, (), 3, 1, (10668, 10667, 10668)),
        (512, 128, (3.0, 1.0), 2, 0, (384, 128)),
        (512, 256, (3.0, 1.0), 2, 0, (256, 256)),
        (512, 256, (3.0, 1.0), 2, 1, (512, 0)),
        (512, 64, (1.0, 0.0, 1.0), 3, 0, (256, 0, 256)),
        (512, 64, (1.0, 0.0, 1.0), 3, 1, (256, 0, 256)),
        (512, 64, (0.0, 0.0), 2, 0, (256, 256)),
    ],
)
def test_shares_are_the_references(
    extent: int, granularity: int, weights: tuple[float, ...], n_devices: int, rotation: int, expected: tuple[int, ...]
) -> None:
    """Small cuts that users reported come out as the reference makes them."""
    assert expected == allocate(extent, granularity, weights, n_devices, rotation)


def test_boundaries_by_ratio_are_float32() -> None:
    """With ratios a boundary is computed in float32, so a long axis can be cut an element off the exact half."""
    assert allocate(2**25 + 3, 1, (1.0, 1.0), 2, 0) == (16777218, 16777217)
    assert allocate(2**25 + 3, 1, (), 2, 0) == (16777217, 16777218)


def test_huge_ratios_are_ratios() -> None:
    """Where length times ratio is beyond float32, the shares are still in the asked proportion."""
    assert allocate(4096, 32, (1e36, 1e36), 2, 0) == (2048, 2048)
    assert allocate(4096, 32, (3e37, 1e37, 0.0), 3, 1) == (3072, 1024, 0)


def test_no_boundary_lies_past_the_end() -> None:
    """Where float32 rounds a length up, the boundary stays at the end and the last share is zero, not negative."""
    assert allocate(2**25 + 3, 1, (1.0, 0.0), 2, 0) == (2**25 + 3, 0)
