"""Plans made by hand or at random, with the file they belong to, and what every slice must be, computed another way."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from app.architectures.roles import Op
from app.devices.backend import Backend, Buffer
from app.devices.facts import DeviceFacts
from app.ggml import BY_NAME, GgmlType
from app.loading.layout import Layout, mappable_bytes
from app.loading.negotiation import LoadMode, MappingDecision, negotiate
from app.modelfile.source import MappedRange
from app.modelfile.types import TensorInfo
from app.planner.plan import (
    Axis,
    DeviceTotal,
    PlanDevice,
    PlannedSegment,
    PlannedTensor,
    SplitMode,
    SplitPlan,
    Why,
)
from app.units import align_up

TYPES = tuple(BY_NAME[name] for name in ("f32", "f16", "q8_0", "q4_K"))


class MemorySource:
    """A shard held in memory that remembers who read what."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.reads: list[tuple[int, int]] = []
        self._data = data
        self._lock = threading.Lock()

    def read_into(self, offset: int, target: memoryview) -> None:
        assert 0 <= offset <= offset + target.nbytes <= self.size
        with self._lock:
            self.reads.append((offset, target.nbytes))
        target[:] = self._data[offset : offset + target.nbytes]

    def close(self) -> None:
        """Nothing to give back."""


@dataclass(frozen=True)
class Example:
    """A plan and the bytes of the shards it plans."""

    plan: SplitPlan
    shards: tuple[bytes, ...]

    def tensor_bytes(self, index: int) -> bytes:
        source = self.plan.tensors[index].source
        assert source is not None
        return self.shards[source.shard][source.offset : source.offset + source.nbytes]


def plan_device(name: str, free_bytes: int = 1 << 40, kind: str = "simulated") -> PlanDevice:
    return PlanDevice(name=name, kind=kind, memory_bytes=free_bytes, free_bytes=free_bytes)


def planned(
    name: str,
    shape: Sequence[int],
    *,
    axis: Axis | None = None,
    device: str | None = None,
    segments: Sequence[tuple[Sequence[int], int]] = (),
    devices: int = 1,
    kind: GgmlType = TYPES[0],
    source: TensorInfo | None = None,
) -> PlannedTensor:
    """One planned tensor; bytes per device follow from the segments, or from the axis."""
    nbytes = kind.row_bytes(shape[0])
    for extent in shape[1:]:
        nbytes *= extent
    if axis in (0, 1, 2):
        share = [sum(extents[d] * repeats for extents, repeats in segments) for d in range(devices)]
        per_device = tuple(nbytes * part // shape[axis] for part in share)
    else:
        per_device = (nbytes if axis is not None else 0,) * devices
    return PlannedTensor(
        name=name,
        type=kind,
        shape=tuple(shape),
        nbytes=nbytes,
        role="attn_q",
        op=Op.MUL_MAT,
        layer=0,
        device=device,
        axis=axis,
        segments=tuple(PlannedSegment(tuple(extents), repeats) for extents, repeats in segments),
        granularity=(1,) * len(segments),
        rotation=0,
        bytes_per_device=per_device,
        why=Why(policy="made for a test"),
        source=source,
    )


def plan_of(
    tensors: Sequence[PlannedTensor],
    devices: Sequence[PlanDevice],
    caches: Sequence[PlannedTensor] = (),
    host: PlanDevice | None = None,
) -> SplitPlan:
    """A plan with its totals added up."""
    known = [*devices, *([host] if host is not None and host.name not in {d.name for d in devices} else [])]

    def on(items: Sequence[PlannedTensor], name: str) -> int:
        total = 0
        for item in items:
            if item.axis is None:
                total += item.nbytes if item.device == name else 0
            else:
                total += sum(n for d, n in zip(devices, item.bytes_per_device, strict=True) if d.name == name)
        return total

    totals = tuple(
        DeviceTotal(
            name=d.name,
            weights_bytes=on(tensors, d.name),
            cache_bytes=on(caches, d.name),
            free_bytes=d.free_bytes,
        )
        for d in known
    )
    return SplitPlan(
        mode=SplitMode.TENSOR,
        devices=tuple(devices),
        tensors=tuple(tensors),
        caches=tuple(caches),
        totals=totals,
        warnings=(),
    )


def expected_slice(tensor: PlannedTensor, data: bytes, slot: int) -> bytes:
    """What device `slot` must hold, by picking units along the axis one run at a time."""
    if tensor.axis is None or tensor.axis in ("mirrored", "partial"):
        return data
    axis = int(tensor.axis)
    shape = [*tensor.shape, 1, 1, 1][:4]
    units = shape[0] // tensor.type.block_size if axis == 0 else shape[axis]
    outer = int(np.prod(shape[axis + 1 :]))
    block = tensor.type.block_size if axis == 0 else 1
    table = np.frombuffer(data, np.uint8).reshape(outer, units, -1)
    chosen: list[int] = []
    at = 0
    for segment in tensor.segments:
        for _ in range(segment.repeats):
            for device, extent in enumerate(segment.extents):
                if device == slot:
                    chosen.extend(range(at, at + extent // block))
                at += extent // block
    assert at == units
    return table[:, chosen, :].tobytes()


def decide(
    plan: SplitPlan, facts: Mapping[str, DeviceFacts], mode: LoadMode = LoadMode.NONE, filesystem: str = "ext"
) -> MappingDecision:
    """The negotiation's answer for a plan."""
    used = [facts[total.name] for total in plan.totals]
    return negotiate(mode, used, mappable=mappable_bytes(plan), filesystem=filesystem)


def make_buffers(
    layout: Layout, backends: Mapping[str, Backend], mapped: Sequence[MappedRange] = ()
) -> dict[int, Buffer]:
    """The buffers a layout asks for; `mapped` are its mapped ranges, in order."""
    ranges = iter(mapped)
    buffers: dict[int, Buffer] = {}
    for spec in layout.buffers:
        if spec.mapped is None:
            buffers[spec.id] = backends[spec.device].allocate(spec.nbytes, spec.accounted_bytes)
        else:
            imported = backends[spec.device].import_host(next(ranges), spec.accounted_bytes)
            assert imported is not None
            buffers[spec.id] = imported
    return buffers


@st.composite
def examples(draw: st.DrawFn, *, max_devices: int = 4, max_tensors: int = 6) -> Example:
    """Any plan that hangs together: types, shapes, axes, segments, zero shares, two shards, tensors placed twice."""
    names = [f"dev{d}" for d in range(draw(st.integers(1, max_devices)))]
    n_shards = draw(st.integers(1, 2))
    alignment = draw(st.sampled_from((1, 8, 32)))
    ends = [draw(st.integers(0, 64)) for _ in range(n_shards)]
    tensors: list[PlannedTensor] = []
    for number in range(draw(st.integers(1, max_tensors))):
        kind, shape, axis, segments = draw(_shapes(len(names)))
        shard = draw(st.integers(0, n_shards - 1))
        offset = align_up(ends[shard], alignment)
        model = planned(f"t{number}", shape, kind=kind, axis=axis, segments=segments, devices=len(names), device="host")
        source = TensorInfo(
            name=model.name, type=kind, shape=tuple(shape), shard=shard, offset=offset, nbytes=model.nbytes
        )
        ends[shard] = offset + model.nbytes
        values: dict[str, Any] = {"kind": kind, "devices": len(names), "source": source}
        home = draw(st.sampled_from(("host", *names)))
        tensors.append(
            planned(model.name, shape, axis=axis, segments=segments, device=home if axis is None else None, **values)
        )
        if draw(st.integers(0, 4)) == 0:  # tied: the same tensor of the file once more
            again: Axis | None = draw(st.sampled_from(("mirrored", None)))
            if again != axis:
                tensors.append(planned(model.name, shape, axis=again, device=None if again else "host", **values))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    shards = tuple(rng.integers(0, 256, end, np.uint8).tobytes() for end in ends)
    plan = plan_of(tensors, [plan_device(name) for name in names], host=plan_device("host", kind="host"))
    return Example(plan=plan, shards=shards)


@st.composite
def _shapes(draw: st.DrawFn, n_devices: int) -> tuple[GgmlType, list[int], Axis | None, list[tuple[list[int], int]]]:
    kind = draw(st.sampled_from(TYPES))
    n_dims = draw(st.integers(1, 4))
    choices: list[Axis | None] = [None, "mirrored", "partial", 0]
    if n_dims > 1:
        choices.append(1)
    if n_dims > 2:
        choices.append(2)
    axis = draw(st.sampled_from(choices))
    shape = [kind.block_size * draw(st.integers(1, 3)), *(draw(st.integers(1, 4)) for _ in range(n_dims - 1))]
    if not isinstance(axis, int):
        return kind, shape, axis, []
    step = kind.block_size if axis == 0 else 1
    segments: list[tuple[list[int], int]] = []
    for _ in range(draw(st.integers(1, 3))):
        extents = [step * draw(st.integers(0, 4)) for _ in range(n_devices)]
        segments.append((extents, draw(st.integers(1, 3))))
    if not any(any(extents) for extents, _ in segments):
        segments[0][0][draw(st.integers(0, n_devices - 1))] = step
    shape[axis] = sum(sum(extents) * repeats for extents, repeats in segments)
    return kind, shape, axis, segments
