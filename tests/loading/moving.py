"""Backends and layouts for tests that move bytes."""

import threading
from collections.abc import Mapping, Sequence

from app.devices.backend import Backend, Buffer
from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend
from app.ggml import BY_NAME
from app.loading.layout import Layout, lay_out
from app.modelfile.types import TensorInfo
from app.planner.plan import Axis, SplitPlan
from app.units import GIB
from tests.loading.plans import (
    decide,
    plan_device,
    plan_of,
    planned,
)

F32 = BY_NAME["f32"]


def backends_for(plan: SplitPlan, kind: str) -> dict[str, Backend]:
    """Backends under the plan's names: all of one kind, or alternating."""
    made: dict[str, Backend] = {}
    for number, total in enumerate(plan.totals):
        if kind == "host" or (kind == "mixed" and number % 2):
            made[total.name] = HostBackend(total.name, GIB)
        else:
            made[total.name] = SimulatedBackend(total.name, GIB, keep_bytes=kind != "checksum")
    return made


def layout_for(plan: SplitPlan, backends: Mapping[str, Backend]) -> Layout:
    facts = {name: backend.facts() for name, backend in backends.items()}
    return lay_out(plan, decide(plan, facts), facts)


def free_all(buffers: Mapping[int, Buffer], backends: Mapping[str, Backend]) -> None:
    """Everything can be given back at once: nobody kept a view."""
    for buffer in buffers.values():
        buffer.free()
    assert dict.fromkeys(backends, 0) == {name: it.facts().allocated_bytes for name, it in backends.items()}


class Tally:
    """Adds up progress; called from several threads."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, device: str, nbytes: int) -> None:
        with self._lock:
            self.bytes[device] = self.bytes.get(device, 0) + nbytes


def one_tensor(axis: Axis, shape: Sequence[int], extents: Sequence[int], names: Sequence[str]) -> SplitPlan:
    """A plan of one F32 tensor at the start of shard 0."""
    segments = [(extents, 1)] if isinstance(axis, int) else []
    model = planned("w", shape, axis=axis, segments=segments, devices=len(names))
    origin = TensorInfo(name="w", type=F32, shape=tuple(shape), shard=0, offset=0, nbytes=model.nbytes)
    tensor = planned("w", shape, axis=axis, segments=segments, devices=len(names), source=origin)
    return plan_of([tensor], [plan_device(name) for name in names])
