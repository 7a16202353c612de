"""The seams of a layer: where slices of different tensors meet, and what must be equal there.

Everything is measured in the unit of the seam (query heads, hidden units, state heads), per device. As slices lie in
device order, equal shares are equal ranges.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from app.architectures.roles import Role
from app.architectures.understanding import Understanding
from app.modelfile.types import TensorInfo
from app.planner.plan import PlannedTensor, SplitPlan

Shares = tuple[int, ...]
Units = tuple[Fraction, ...]
Layer = Mapping[str, PlannedTensor]  # a layer's tensors by the label of their role


@dataclass(frozen=True, slots=True)
class Fault:
    """A seam at which a proof fails."""

    seam: str
    detail: str
    tensor: str | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """A seam at which a proof holds; `show` gives its numbers (most are never looked at, so it is only then made)."""

    show: Callable[[], str]


@dataclass(frozen=True, slots=True)
class SeamProof:
    """A proof: its name, the seam it is about, and the check that goes through a plan."""

    name: str
    seam: str
    check: "Callable[[PlannedLayers], Iterator[Fault | Numbers]]"


class PlannedLayers:
    """A plan's tensors by layer and role, with the model they belong to."""

    def __init__(self, plan: SplitPlan, understanding: Understanding) -> None:
        self.plan = plan
        self.understanding = understanding
        self.hparams = understanding.hparams
        self.capabilities = understanding.architecture.capabilities
        self.n_devices = len(plan.devices)
        self.all = (*plan.tensors, *plan.caches)
        self._by_layer: dict[int, dict[str, PlannedTensor]] = {}
        for tensor in self.all:
            if tensor.layer is not None and tensor.device is None:
                self._by_layer.setdefault(tensor.layer, {})[tensor.role] = tensor
        self._shares: dict[tuple[object, ...], Shares] = {}

    @cached_property
    def unused(self) -> frozenset[TensorInfo]:
        """Tensors of the file that nothing uses."""
        return frozenset(self.understanding.comparison.unused)

    def layers(self) -> Iterator[tuple[int, Layer]]:
        """The layers that belong to all devices, each with its tensors by role."""
        yield from self._by_layer.items()

    def alike(self, number: int) -> object:
        """Equal for layers whose tensors were cut by the same decisions: they need no second look.

        Decisions are told apart by identity, so a tensor that was cut on its own is always looked at.
        """
        hp = self.hparams
        widths = (hp.n_head[number], hp.n_head_kv[number], hp.n_ff[number], hp.n_ff_exp[number])
        cuts = ((role, tensor.axis, id(tensor.segments)) for role, tensor in self._by_layer[number].items())
        return widths, hp.is_swa[number], hp.is_recr[number], tuple(cuts)

    def shares(self, tensor: PlannedTensor) -> Shares:
        """Elements along the axis per device, over all runs."""
        known = self._shares.get(tensor.segments)
        if known is None:
            known = self._shares[tensor.segments] = tuple(
                sum(part.extents[d] * part.repeats for part in tensor.segments) for d in range(self.n_devices)
            )
        return known


@dataclass(frozen=True, slots=True)
class Meeting:
    """One tensor at a seam: its shares in the seam's unit."""

    tensor: PlannedTensor
    part: str
    units: Units


def compare(seam: str, unit: str, anchor: Meeting, others: Sequence[Meeting]) -> Fault | Numbers:
    """All shares must be whole numbers of the unit, and equal to the anchor's."""
    for meeting in (anchor, *others):
        if not _whole(meeting.units):
            return Fault(
                seam,
                f"{meeting.part} {meeting.tensor.name} is cut inside a {unit}: {_text(meeting.units)} {unit}s",
                meeting.tensor.name,
            )
    for meeting in others:
        if meeting.units != anchor.units:
            return Fault(
                seam,
                f"{meeting.part} {meeting.tensor.name} has {_text(meeting.units)} {unit}s, "
                f"{anchor.tensor.name} {_text(anchor.units)}",
                meeting.tensor.name,
            )

    def show() -> str:
        names = ", ".join(dict.fromkeys(meeting.part for meeting in (anchor, *others)))
        return f"{seam}: {names} all have {_text(anchor.units)} {unit}s"

    return Numbers(show)


@lru_cache(maxsize=4096)
def per(shares: Shares, per_unit: int, times: int = 1) -> Units:
    """Shares of elements in units of `per_unit` elements, each of which counts `times`; below zero without a unit."""
    if per_unit == 0:
        return tuple(Fraction(-1) for _ in shares)
    return tuple(Fraction(share * times, per_unit) for share in shares)


@lru_cache(maxsize=4096)
def _whole(units: Units) -> bool:
    return all(share.denominator == 1 for share in units)


def _text(units: Sequence[Fraction]) -> str:
    return "/".join(str(unit) for unit in units)


def is_cut(tensor: PlannedTensor) -> bool:
    """Whether every device has a slice of its own, which may be empty."""
    return isinstance(tensor.axis, int)


def cut_tensors(layer: Layer, *wanted: Role) -> Iterator[PlannedTensor]:
    """Those of a layer's tensors in the `wanted` roles that are cut."""
    for role in wanted:
        tensor = layer.get(role.label)
        if tensor is not None and is_cut(tensor):
            yield tensor
