"""Loads without a service, and what they tell on their way."""

import threading
from collections.abc import Callable

from app.loading.lifecycle import LoadEvent
from app.loading.readback import join
from app.loading.request import PlanRequest
from app.loading.run import LoadedModel, World, run_load
from app.loading.signals import Allocated, Freed, Placed, Signal

T0_2 = 312_576
"""Bytes of the tensors of `t0` with two layers."""


class Log:
    """Every signal of a load; may do something when one comes."""

    def __init__(self, react: Callable[[Signal], None] = lambda _signal: None) -> None:
        self.signals: list[Signal] = []
        self._react = react
        self._lock = threading.Lock()

    def __call__(self, signal: Signal) -> None:
        with self._lock:
            self.signals.append(signal)
        self._react(signal)

    @property
    def events(self) -> list[str]:
        return [signal.kind.value for signal in self.signals if isinstance(signal, LoadEvent)]

    def bytes_of(self, kind: type[Allocated] | type[Placed] | type[Freed]) -> dict[str, int]:
        sums: dict[str, int] = {}
        for signal in self.signals:
            if isinstance(signal, kind):
                sums[signal.device] = sums.get(signal.device, 0) + signal.nbytes
        return sums


def load(place: World, wish: PlanRequest, log: Log | None = None, stop: threading.Event | None = None) -> LoadedModel:
    return run_load(wish, place, log or Log(), stop or threading.Event())


def assert_whole(loaded: LoadedModel) -> None:
    """Every tensor, joined from its devices, is the file's."""
    plan, model = loaded.prepared.plan, loaded.prepared.model
    for index, tensor in enumerate(plan.tensors):
        assert tensor.source is not None
        with model.shards[tensor.source.shard].path.open("rb") as file:
            file.seek(tensor.source.offset)
            assert join(plan, loaded.layout, loaded.buffers, index) == file.read(tensor.source.nbytes), tensor.name
