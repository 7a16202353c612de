"""Exceptions to the rules of the split, as data: what an architecture's file may say about its own tensors.

The standard knowledge is in the planner's stages; they look here first, by role.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from app.architectures.hparams import HParams
from app.architectures.roles import Role

RuleAxis = Literal[0, 1, 2, "mirrored", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """Along which axis a role is cut, and whose quant block limits the cut.

    `anchors` are roles of the same layer, the first that exists counts; empty: the tensor itself. `why` is the
    sentence that appears in the plan.
    """

    axis: RuleAxis
    anchors: tuple[Role, ...] = ()
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a segmentation or granularity exception is asked about."""

    hparams: HParams
    layer: int
    extent: int
    block_size: int
    n_devices: int


SegmentRule = Callable[[Cut], tuple[tuple[int, int], ...]]  # (extent, repeats) runs; must sum to the cut's extent
GranularityRule = Callable[[Cut], tuple[int, ...]]  # one granularity per segment, in elements


def _none() -> Mapping[Role, "PolicyRule"]:
    return MappingProxyType({})


def _no_segments() -> Mapping[Role, SegmentRule]:
    return MappingProxyType({})


def _no_granularity() -> Mapping[Role, GranularityRule]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOverrides:
    """An architecture's exceptions, by role. `segments` and `granularity` go with a sentence in `why`, if given.

    `mirrored`: the sentence that says why nothing is cut at all, weights and caches whole on every device.
    """

    mirrored: str | None = None
    policy: Mapping[Role, PolicyRule] = field(default_factory=_none)
    segments: Mapping[Role, SegmentRule] = field(default_factory=_no_segments)
    granularity: Mapping[Role, GranularityRule] = field(default_factory=_no_granularity)
    why: Mapping[Role, str] = field(default_factory=lambda: MappingProxyType({}))


NO_OVERRIDES = SplitOverrides()
