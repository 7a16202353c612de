"""The pipeline: the only place that knows the order of the stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.architectures.split import SplitOverrides
from app.architectures.understanding import Understanding
from app.errors import PlanError
from app.modelfile.text import brief
from app.modelfile.types import TensorInfo
from app.planner.allocation import allocate, describe
from app.planner.classification import Peers, classify, peers_by_layer
from app.planner.granularity import granulate
from app.planner.memory import classify_caches, context_warnings
from app.planner.placement import Overrides, Units, assign_units, home_of
from app.planner.plan import (
    MAX_DEVICES,
    Axis,
    Classified,
    PlannedSegment,
    PlannedTensor,
    Policy,
    Reduction,
    Segment,
    SplitAxis,
    SplitMode,
    SplitPlan,
    SplitTargets,
    Tensor,
    Why,
    extent_along,
)
from app.planner.policy import decide_policy
from app.planner.reduction import reduction
from app.planner.rotation import LayerKinds, Rotations
from app.planner.segmentation import SplitContext, segment
from app.planner.totals import add_up


def plan_split(understanding: Understanding, targets: SplitTargets) -> SplitPlan:
    """Decide for every tensor where it lives and where it is cut, with the reason of every decision.

    Raises PlanError (unsupported_split, impossible_plan), or MetadataError where the file's tensors are not the
    architecture's.
    """
    refuse_unsplittable(understanding, targets)
    understanding.require_tensors()
    classified = classify(understanding.comparison)
    units = assign_units(understanding.hparams.n_layer_all, targets)
    overrides = Overrides(targets.overrides)
    splitter = Splitter(understanding, targets, peers_by_layer(classified))
    homes = [_home(item, units, overrides) for item in classified]
    originals = {(item.tensor.name, home) for item, (home, _) in zip(classified, homes, strict=True) if not item.copy}
    copies: set[tuple[str, str | None]] = set()
    tensors: list[PlannedTensor] = []
    for item, (home, where) in zip(classified, homes, strict=True):
        if item.copy:
            # a copy is one only where the tensor is not already, whichever of its uses comes first
            place = (item.tensor.name, home)
            if place in originals or place in copies:
                continue
            copies.add(place)
        tensors.append(splitter.split(item) if home is None else _whole(item, home, where, targets))
    caches: list[PlannedTensor] = []
    for item in classify_caches(understanding, targets):
        # a cache is used where its layer is computed: an override of the layer's weights does not move it
        home, where = home_of(item, units)
        caches.append(splitter.split(item) if home is None else _whole(item, home, where, targets))
    warnings = (*understanding.warnings, *_unused(understanding), *units.warnings, *overrides.warnings())
    return SplitPlan(
        mode=targets.mode,
        devices=targets.devices,
        tensors=tuple(tensors),
        caches=tuple(caches),
        totals=add_up(tensors, caches, targets),
        warnings=(*warnings, *context_warnings(understanding, targets)),
    )


def _home(item: Classified, units: Units, overrides: Overrides) -> tuple[str | None, str]:
    """The device a tensor lives on (None: on all together), and why."""
    override = overrides.device_for(item.tensor.name)
    if override is not None:
        return override.device, f"override {brief(override.pattern)!r}"
    return home_of(item, units)


def refuse_unsplittable(understanding: Understanding, targets: SplitTargets) -> None:
    """Refuse what the mode cannot do with this architecture or these devices, before anything is decided."""
    if targets.mode is SplitMode.ROW:
        raise PlanError(
            "row mode needs devices with split buffers, and no device here has them",
            code="unsupported_split",
            capability="split_buffer",
        )
    if targets.mode is not SplitMode.TENSOR:
        return
    if len(targets.devices) > MAX_DEVICES:
        raise PlanError(
            f"a model can be split by tensor over at most {MAX_DEVICES} devices, not {len(targets.devices)}",
            code="unsupported_split",
            expected=MAX_DEVICES,
            found=len(targets.devices),
        )
    architecture = understanding.architecture
    if not architecture.capabilities.tensor_split:
        raise PlanError(
            f"models of architecture {architecture.name} cannot be split by tensor",
            code="unsupported_split",
            architecture=architecture.name,
            capability="tensor_split",
        )


@dataclass(frozen=True, slots=True)
class _Decision:
    """Stages 2 to 5 for one tensor, without the tensor."""

    axis: Axis
    rotation: int
    segments: tuple[PlannedSegment, ...]
    steps: tuple[int, ...]
    bytes_per_device: tuple[int, ...]
    why: Why
    reduce_after: Reduction | None = None


@dataclass(frozen=True, slots=True)
class _Runs:
    """Stages 3 and 4: they are the same for every rotation."""

    segments: tuple[Segment, ...]
    why_segments: str
    steps: tuple[int, ...]
    why_steps: str


_NO_PEERS: Final = Peers({})  # a layer may have a memory and no tensors


class Splitter:
    """Stages 2 to 5 for one model and one set of devices.

    Layers repeat, so equal questions are answered once: a decision is kept under everything the stages may look at.
    """

    def __init__(self, understanding: Understanding, targets: SplitTargets, peers: dict[int | None, Peers]) -> None:
        self._hparams = understanding.hparams
        self._capabilities = understanding.architecture.capabilities
        self._overrides: SplitOverrides = understanding.architecture.split_overrides(self._hparams)
        self._peers = peers
        self._n_devices = len(targets.devices)
        self._weights: Sequence[float] = targets.tensor_split or ()
        self._rotations = Rotations(self._hparams, self._n_devices)
        self._kinds = LayerKinds(self._hparams)
        self._decided: dict[object, _Decision] = {}
        self._runs: dict[object, _Runs] = {}
        self._layer_questions: dict[int | None, tuple[int]] = {}
        self._alike: dict[object, int] = {}

    def split(self, item: Classified) -> PlannedTensor:
        """One tensor that belongs to all devices, cut or mirrored."""
        tensor = item.tensor
        question = (item.role, tensor.shape, tensor.type.id, self._layer_question(item))
        rotation = self._rotations.of(item.layer)
        decision = self._decided.get((question, rotation))
        if decision is None:
            peers = self._peers.get(item.layer, _NO_PEERS)
            policy = decide_policy(item, peers, self._overrides, rotation)
            decision = self._decided[question, rotation] = self._decide(item, policy, question)
        return PlannedTensor(
            name=tensor.name,
            type=tensor.type,
            shape=tensor.shape,
            nbytes=tensor.nbytes,
            role=item.role.label,
            op=item.role.op,
            layer=item.layer,
            device=None,
            axis=decision.axis,
            segments=decision.segments,
            granularity=decision.steps,
            rotation=decision.rotation,
            bytes_per_device=decision.bytes_per_device,
            why=decision.why,
            source=_in_file(tensor),
            reduce_after=decision.reduce_after,
        )

    def _layer_question(self, item: Classified) -> object:
        """Equal for tensors whose layers get the same answers; an exception may ask for the layer itself."""
        if item.role in self._overrides.segments or item.role in self._overrides.granularity:
            return item.layer
        known = self._layer_questions.get(item.layer)
        if known is None:
            peers = self._peers.get(item.layer, _NO_PEERS)
            alike = (peers.kind, self._kinds.of(item.layer))
            # a number of its own instead of the facts: they are long to compare
            number = self._alike.setdefault(alike, len(self._alike))
            known = self._layer_questions[item.layer] = (number,)
        return known

    def _decide(self, item: Classified, policy: Policy, question: object) -> _Decision:
        if policy.axis == "mirrored":
            return self._whole_everywhere(item, policy, (), Why(policy=policy.reason))
        if policy.axis == "partial":
            return self._partial(item, policy)
        return self._cut(item, policy, policy.axis, question)

    def _cut(self, item: Classified, policy: Policy, axis: SplitAxis, question: object) -> _Decision:
        runs = self._runs.get(question)
        if runs is None:
            runs = self._runs[question] = self._runs_of(item, policy, axis)
        planned = []
        reasons = []
        for part, step in zip(runs.segments, runs.steps, strict=True):
            extents = allocate(part.extent, step, self._weights, self._n_devices, policy.rotation)
            planned.append(PlannedSegment(extents, part.repeats))
            reasons.append(describe(part.extent, extents, step, self._weights, policy.rotation))
        segments = tuple(planned)
        why = Why(
            policy=policy.reason,
            segmentation=runs.why_segments,
            granularity=runs.why_steps,
            allocation="; ".join(reasons),
        )
        shares = self._shares(segments)
        nbytes = tuple(_slice_bytes(item.tensor, axis, share) for share in shares)
        summed = reduction(item.role.op, axis, item.tensor.shape, shares)
        return _Decision(axis, policy.rotation, segments, runs.steps, nbytes, why, summed)

    def _runs_of(self, item: Classified, policy: Policy, axis: SplitAxis) -> _Runs:
        tensor = item.tensor
        context = SplitContext(
            tensor=item,
            axis=axis,
            extent=extent_along(tensor.shape, axis),
            block_size=policy.anchor.type.block_size,
            n_devices=self._n_devices,
            hparams=self._hparams,
            capabilities=self._capabilities,
        )
        segments, why_segments = segment(context, self._overrides)
        return _Runs(segments, why_segments, *granulate(context, segments, self._overrides))

    def _shares(self, segments: tuple[PlannedSegment, ...]) -> tuple[int, ...]:
        """Elements along the axis that each device gets over all runs."""
        return tuple(sum(part.extents[d] * part.repeats for part in segments) for d in range(self._n_devices))

    def _partial(self, item: Classified, policy: Policy) -> _Decision:
        """Whole on every device; its extents are the shares of the tensor into whose sums it goes."""
        anchor = next(
            Classified(tensor=tensor, role=role, layer=item.layer)
            for role, tensor in self._peers[item.layer].by_role.items()
            if tensor is policy.anchor
        )
        shares = self._shares(self.split(anchor).segments)
        why = Why(
            policy=policy.reason,
            allocation=f"shares of {anchor.role}: {'/'.join(map(str, shares))}; the bytes are whole on every device",
        )
        return self._whole_everywhere(item, policy, (PlannedSegment(shares, 1),), why)

    def _whole_everywhere(
        self, item: Classified, policy: Policy, segments: tuple[PlannedSegment, ...], why: Why
    ) -> _Decision:
        return _Decision(policy.axis, policy.rotation, segments, (), (item.tensor.nbytes,) * self._n_devices, why)


def _whole(item: Classified, home: str, where: str, targets: SplitTargets) -> PlannedTensor:
    tensor = item.tensor
    return PlannedTensor(
        name=tensor.name,
        type=tensor.type,
        shape=tensor.shape,
        nbytes=tensor.nbytes,
        role=item.role.label,
        op=item.role.op,
        layer=item.layer,
        device=home,
        axis=None,
        segments=(),
        granularity=(),
        rotation=0,
        bytes_per_device=tuple(tensor.nbytes if device.name == home else 0 for device in targets.devices),
        why=Why(policy=where),
        source=_in_file(tensor),
    )


def _in_file(tensor: Tensor) -> TensorInfo | None:
    return tensor if isinstance(tensor, TensorInfo) else None


def _slice_bytes(tensor: Tensor, axis: int, share: int) -> int:
    extent = extent_along(tensor.shape, axis)
    return tensor.nbytes * share // extent if extent else 0


def _unused(understanding: Understanding) -> tuple[str, ...]:
    unused = understanding.comparison.unused
    if not unused:
        return ()
    nbytes = sum(tensor.nbytes for tensor in unused)
    names = ", ".join(tensor.name for tensor in unused[:3]) + (", …" if len(unused) > 3 else "")
    return (f"{len(unused)} tensors ({nbytes} bytes) are in the file and nothing uses them: {names}",)
