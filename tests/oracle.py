"""The recorded answers of the reference, as tests ask for them."""

import gzip
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.architectures.registry import Catalog, load_catalog
from app.architectures.understanding import Understanding, understand
from app.planner.plan import Override, PlanDevice, PlannedTensor, SplitMode, SplitTargets
from tests.builders import materialise

GROUPS = ("real", "toy", "toy_q")
AXES = {0: 0, 1: 1, 2: 2, 10: "mirrored", 11: "partial"}
HOST_MEMORY = 1 << 50


@lru_cache(maxsize=1)
def the_catalog() -> Catalog:
    """The product's catalog."""
    return load_catalog()


def records(oracle: Path, name: str) -> Iterator[dict[str, Any]]:
    """The lines of one recording, e.g. `facts/toy`."""
    with gzip.open(oracle / f"{name}.jsonl.gz", "rt") as lines:
        for line in lines:
            yield json.loads(line)


def is_cache(name: str) -> bool:
    """Whether a recorded state is a cache's."""
    return name.startswith(("cache_", "dsv4_"))


class Models:
    """Understandings of the recorded headers, made once each, as sparse files in `folder`."""

    def __init__(self, oracle: Path, folder: Path) -> None:
        self._oracle = oracle
        self._folder = folder
        self._known: dict[tuple[str, str], Understanding] = {}

    def __call__(self, group: str, file: str) -> Understanding:
        key = (group, file)
        if key not in self._known:
            path = self._folder / f"{group}-{file}"
            model = materialise(self._oracle / "headers" / group / f"{file}.hdr", path)
            self._known[key] = understand(model, the_catalog())
            path.unlink()
        return self._known[key]


def gpu_devices(count: int, free_bytes: int = 8 << 30) -> tuple[PlanDevice, ...]:
    """Equal devices D0…, as the recordings had them."""
    return tuple(
        PlanDevice(name=f"D{index}", kind="gpu", memory_bytes=free_bytes, free_bytes=free_bytes)
        for index in range(count)
    )


HOST = PlanDevice(name="host", kind="host", memory_bytes=HOST_MEMORY, free_bytes=HOST_MEMORY)


def targets(
    mode: SplitMode,
    n_devices: int,
    tensor_split: list[float] | None = None,
    n_gpu_layers: int = -1,
    overrides: str | None = None,
) -> SplitTargets:
    """A recorded configuration as the planner gets it."""
    rules = [rule.rsplit("=", 1) for rule in overrides.split(";")] if overrides else []
    return SplitTargets(
        mode=mode,
        devices=gpu_devices(n_devices),
        host=HOST,
        tensor_split=tuple(float(weight) for weight in tensor_split) if tensor_split else None,
        n_gpu_layers=n_gpu_layers,
        overrides=tuple(Override(pattern=pattern, device=on_host(device)) for pattern, device in rules),
    )


def on_host(device: str) -> str:
    """The recordings' `CPU` is the plan's `host`."""
    return "host" if device == "CPU" else device


def state(tensor: PlannedTensor) -> list[Any]:
    """A planned tensor in the recordings' form; mirrored extents mean nothing and are left out."""
    return [tensor.axis, [[list(part.extents), part.repeats] for part in tensor.segments]]


def recorded_state(answer: list[Any]) -> list[Any]:
    """A recorded state in the same form."""
    axis, segments = answer
    return [AXES[axis], [] if axis == 10 else segments]
