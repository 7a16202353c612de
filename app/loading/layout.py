"""From a plan to buffers and copy steps. Pure: it refuses what does not fit before anything is allocated.

Every placement of a tensor is a range of one buffer. Tensors that stay whole on a device that maps are ranges of the
mapped file, where they lie as the file put them. All else is packed into buffers as large as the device allows, each
tensor aligned as the device asks. Caches get buffers of their own: weights are never written again once they are in
place, caches are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.devices.facts import DeviceFacts
from app.errors import CapacityError, Fact
from app.loading.cuts import Cut, copies_cut, tensor_cut, with_copies
from app.loading.negotiation import MappingDecision
from app.loading.ranges import mapped_ranges
from app.modelfile.types import TensorInfo
from app.planner.plan import PlannedTensor, SplitPlan
from app.units import align_up, human_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSpec:
    """Bytes `[offset, offset + nbytes)` of shard `shard`'s file, to be mapped."""

    shard: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSpec:
    """One buffer to be made. `accounted_bytes` are its tensors' bytes, which the plan counts; `nbytes` has the gaps."""

    id: int
    device: str
    nbytes: int
    accounted_bytes: int
    mapped: MappedSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one device's part of a tensor lies. `tensor` counts through the plan's tensors, then its caches."""

    tensor: int
    device: str
    buffer: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStep:
    """One tensor of the file to be read once, at byte `offset` of shard `shard`.

    `cut` says which bytes belong to which slot; `targets[s]` is where slot `s` lies, None where it has no bytes.
    """

    shard: int
    offset: int
    nbytes: int
    cut: Cut
    targets: tuple[Placement | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The outcome. `steps` are in file order. Sizes in bytes.

    `total_bytes` is what all devices get, caches and mapped tensors included; `copy_bytes` what is to be written on
    them; `read_bytes` what is to be read for that: each byte of the file once, however many devices get it.
    """

    buffers: tuple[BufferSpec, ...]
    steps: tuple[CopyStep, ...]
    placements: tuple[Placement, ...]
    total_bytes: int
    copy_bytes: int
    read_bytes: int

    @property
    def mapped_bytes(self) -> int:
        """Tensor bytes that are the mapped file."""
        return sum(buffer.accounted_bytes for buffer in self.buffers if buffer.mapped is not None)


def whole_on(plan: SplitPlan, tensor: PlannedTensor) -> str | None:
    """The one device that holds all of `tensor` and holds it alone; None for slices and mirrored copies."""
    if tensor.axis is None:
        return tensor.device
    holders = [device.name for device, part in zip(plan.devices, tensor.bytes_per_device, strict=True) if part]
    return holders[0] if len(holders) == 1 else None


def mappable_bytes(plan: SplitPlan) -> dict[str, int]:
    """Bytes of file tensors that stay whole, per device: what the negotiation of the load mode needs to know."""
    found: dict[str, int] = defaultdict(int)
    for tensor in plan.tensors:
        device = whole_on(plan, tensor)
        if device is not None and tensor.nbytes:
            found[device] += tensor.nbytes
    return dict(found)


def lay_out(plan: SplitPlan, mapping: MappingDecision, facts: Mapping[str, DeviceFacts]) -> Layout:
    """Buffers, steps and placements for `plan`; time in proportion to tensors × devices.

    `facts` knows every device of the plan, and the host if it is used.
    Raises CapacityError naming every device that is short, or the slice that is larger than a device's largest buffer.
    """
    layout = _Builder(plan, mapping, facts)
    layout.require_room()
    layout.map_whole_tensors()
    layout.pack()
    return layout.result()


@dataclass(slots=True)
class _Open:
    """A buffer that is still being filled."""

    device: str
    id: int
    nbytes: int = 0
    accounted: int = 0


@dataclass(slots=True)
class _Builder:
    """The state of one `lay_out`."""

    plan: SplitPlan
    mapping: MappingDecision
    facts: Mapping[str, DeviceFacts]
    buffers: list[BufferSpec | _Open] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    mapped: set[int] = field(default_factory=set)
    to_read: dict[tuple[int, int], list[tuple[TensorInfo, Cut, tuple[Placement | None, ...]]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def require_room(self) -> None:
        """Every device has room for its part, or one error names all that have not."""
        needed: dict[str, int] = defaultdict(int)
        for tensor in self._all():
            for device, nbytes in self._parts(tensor):
                needed[device] += nbytes
        short: list[Fact] = []
        sentences: list[str] = []
        for device, nbytes in needed.items():
            free = self.facts[device].free_bytes
            if nbytes > free:
                short.append({"device": device, "needed_bytes": nbytes, "free_bytes": free})
                sentences.append(f"{device} needs {human_bytes(nbytes)} and has {human_bytes(free)} free")
        if short:
            raise CapacityError(f"the model does not fit: {'; '.join(sentences)}", devices=short)

    def map_whole_tensors(self) -> None:
        """Ranges of the file for the tensors that are the mapping."""
        mapping = {reason.device for reason in self.mapping.reasons if reason.mode.maps}
        members: dict[tuple[str, int], list[tuple[int, TensorInfo]]] = defaultdict(list)
        for index, tensor in enumerate(self.plan.tensors):
            device = whole_on(self.plan, tensor)
            if device in mapping and device is not None and tensor.source is not None and tensor.nbytes:
                self._require_allocatable(tensor.name, device, tensor.nbytes)
                members[device, tensor.source.shard].append((index, tensor.source))
        for (device, shard), found in members.items():
            found.sort(key=lambda member: member[1].offset)
            indices = iter(index for index, _ in found)
            for sources in mapped_ranges([source for _, source in found], self.facts[device].max_allocation_bytes):
                self._map(device, shard, [(next(indices), source) for source in sources])

    def pack(self) -> None:
        """Buffers for all else: weights first, then caches in buffers of their own."""
        open_weights: dict[str, _Open] = {}
        open_caches: dict[str, _Open] = {}
        n_weights = len(self.plan.tensors)
        for index, tensor in enumerate(self._all()):
            if index in self.mapped:
                continue
            targets = open_weights if index < n_weights else open_caches
            placed = [
                self._place(targets, index, tensor, device, nbytes) if nbytes else None
                for device, nbytes in self._parts(tensor)
            ]
            if tensor.source is not None and any(placed):
                cut = tensor_cut(tensor) if tensor.axis in (0, 1, 2) else copies_cut(tensor.nbytes, len(placed))
                self.to_read[tensor.source.shard, tensor.source.offset].append((tensor.source, cut, tuple(placed)))

    def result(self) -> Layout:
        """The finished value."""
        steps = tuple(step for place in sorted(self.to_read) for step in _steps(self.to_read[place]))
        copied = sum(target.nbytes for step in steps for target in step.targets if target is not None)
        return Layout(
            buffers=tuple(
                BufferSpec(id=it.id, device=it.device, nbytes=it.nbytes, accounted_bytes=it.accounted)
                if isinstance(it, _Open)
                else it
                for it in self.buffers
            ),
            steps=steps,
            placements=tuple(sorted(self.placements, key=lambda placement: placement.tensor)),
            total_bytes=sum(placement.nbytes for placement in self.placements),
            copy_bytes=copied,
            read_bytes=sum(step.nbytes for step in steps),
        )

    def _all(self) -> Iterator[PlannedTensor]:
        yield from self.plan.tensors
        yield from self.plan.caches

    def _parts(self, tensor: PlannedTensor) -> Iterator[tuple[str, int]]:
        """Each device with its bytes of `tensor`, zeros included."""
        if tensor.axis is None:
            assert tensor.device is not None, f"{tensor.name} lives nowhere"
            return iter(((tensor.device, tensor.nbytes),))
        names = (device.name for device in self.plan.devices)
        return zip(names, tensor.bytes_per_device, strict=True)

    def _map(self, device: str, shard: int, group: Sequence[tuple[int, TensorInfo]]) -> None:
        first = group[0][1].offset
        end = max(source.offset + source.nbytes for _, source in group)
        number = len(self.buffers)
        self.buffers.append(
            BufferSpec(
                id=number,
                device=device,
                nbytes=end - first,
                accounted_bytes=sum(source.nbytes for _, source in group),
                mapped=MappedSpec(shard=shard, offset=first, nbytes=end - first),
            )
        )
        for index, source in group:
            self.mapped.add(index)
            self.placements.append(
                Placement(
                    tensor=index, device=device, buffer=number, offset=source.offset - first, nbytes=source.nbytes
                )
            )

    def _place(
        self, targets: dict[str, _Open], index: int, tensor: PlannedTensor, device: str, nbytes: int
    ) -> Placement:
        self._require_allocatable(tensor.name, device, nbytes)
        facts = self.facts[device]
        buffer = targets.get(device)
        offset = 0 if buffer is None else align_up(buffer.nbytes, facts.alignment_bytes)
        if buffer is None or offset + nbytes > facts.max_allocation_bytes:
            offset = 0
            buffer = targets[device] = _Open(device, len(self.buffers))
            self.buffers.append(buffer)
        buffer.nbytes = offset + nbytes
        buffer.accounted += nbytes
        placement = Placement(tensor=index, device=device, buffer=buffer.id, offset=offset, nbytes=nbytes)
        self.placements.append(placement)
        return placement

    def _require_allocatable(self, tensor: str, device: str, nbytes: int) -> None:
        facts = self.facts[device]
        if nbytes <= facts.max_allocation_bytes:
            return
        raise CapacityError(
            f"{tensor} has {human_bytes(nbytes)} on {device}, whose largest buffer is "
            f"{human_bytes(facts.max_allocation_bytes)}",
            tensor=tensor,
            device=device,
            needed_bytes=nbytes,
            max_allocation_bytes=facts.max_allocation_bytes,
            devices=[{"device": device, "needed_bytes": nbytes, "free_bytes": facts.free_bytes}],
        )


_Read = tuple[TensorInfo, Cut, tuple[Placement | None, ...]]


def _steps(placed: Sequence[_Read]) -> Iterator[CopyStep]:
    """Steps for the placements of one tensor of the file: one, unless it is cut in two different ways.

    A tensor placed twice (tied embeddings) is read once: whole copies join whatever else is read of it.
    """
    uncut = [it for it in placed if not it[1].segments]
    divided = [it for it in placed if it[1].segments]
    source = placed[0][0]
    copies = tuple(target for _, _, targets in uncut for target in targets if target is not None)
    if not divided:
        yield _step(source, copies_cut(source.nbytes, len(copies)), copies)
    for number, (_, cut, targets) in enumerate(divided):
        joining = copies if number == 0 else ()
        yield _step(source, with_copies(cut, len(joining)), (*targets, *joining))


def _step(source: TensorInfo, cut: Cut, targets: tuple[Placement | None, ...]) -> CopyStep:
    return CopyStep(shard=source.shard, offset=source.offset, nbytes=source.nbytes, cut=cut, targets=targets)
