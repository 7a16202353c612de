"""Placement: on which device a tensor lives when it lives on one.

Units are the layers and, last, the output. The last `n_gpu_layers` units are offloaded; which device a unit gets
follows from its place among the offloaded ones and from the ratios (as the reference loads tensors). The input
layer always stays on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.architectures.roles import LayerClass
from app.modelfile.text import brief
from app.planner.patterns import Patterns
from app.planner.plan import HOST, Classified, Override, PlanDevice, SplitMode, SplitTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The device of every unit: `layers[i]` and `output`, by name; None means: all devices together (tensor mode)."""

    layers: tuple[str | None, ...]
    output: str | None
    warnings: tuple[str, ...]


def assign_units(n_layer_all: int, targets: SplitTargets) -> Units:
    """Give every unit its device."""
    n_units = n_layer_all + 1
    asked = targets.n_gpu_layers if targets.n_gpu_layers >= 0 else n_units
    first = max(n_units - asked, 0)
    offloaded = min(asked, n_units)
    if targets.mode is SplitMode.TENSOR:
        homes: list[str | None] = [HOST] * first + [None] * offloaded
        return Units(layers=tuple(homes[:-1]), output=homes[-1], warnings=())
    devices = targets.devices
    if targets.mode is SplitMode.NONE:
        devices = (targets.devices[targets.main_device],)
    points, warnings = _split_points(devices, targets.tensor_split if targets.mode is SplitMode.LAYER else None)
    names: list[str | None] = [HOST] * first
    names += [devices[_first_above(points, unit, offloaded)].name for unit in range(offloaded)]
    return Units(layers=tuple(names[:-1]), output=names[-1], warnings=warnings)


def _split_points(
    devices: Sequence[PlanDevice], ratios: tuple[float, ...] | None
) -> tuple[tuple[np.float32, ...], tuple[str, ...]]:
    """Running float32 shares, ending in 1; without ratios by free memory, and evenly where nothing is free."""
    warnings: tuple[str, ...] = ()
    weights: Sequence[float] = ratios or ()
    if not any(weights):
        weights = [device.free_bytes for device in devices]
        if not any(weights):
            weights = [1.0] * len(devices)
            warnings = ("no device has free memory: layers are spread evenly, as if all had the same",)
    total = np.float32(0)
    sums = []
    for weight in weights:
        total = np.float32(total + np.float32(weight))
        sums.append(total)
    return tuple(np.float32(part / total) for part in sums), warnings


def _first_above(points: Sequence[np.float32], unit: int, offloaded: int) -> int:
    place = np.float32(np.float32(unit) / np.float32(offloaded))
    for index, point in enumerate(points):
        if point > place:
            return index
    return len(points) - 1


_MOST_NAMED: Final = 16


class Overrides:
    """The request's overrides: the first pattern found in a tensor's name decides its device."""

    def __init__(self, overrides: Sequence[Override]) -> None:
        self._overrides = overrides
        self._patterns = Patterns([override.pattern for override in overrides], "overrides")
        self._unmatched = dict.fromkeys(override.pattern for override in overrides)

    def device_for(self, name: str) -> Override | None:
        """The override that applies to the tensor called `name`, if any."""
        index = self._patterns.first(name)
        if index is None:
            return None
        override = self._overrides[index]
        self._unmatched.pop(override.pattern, None)
        return override

    def warnings(self) -> tuple[str, ...]:
        """One sentence per pattern that decided nothing; many are told by their number."""
        named = [f"override {brief(pattern)!r} decided no tensor's device" for pattern in self._unmatched]
        if len(named) > _MOST_NAMED:
            return (*named[:_MOST_NAMED], f"nor did {len(named) - _MOST_NAMED} other overrides")
        return tuple(named)


def home_of(tensor: Classified, units: Units) -> tuple[str | None, str]:
    """The device a tensor would live on without overrides (None: all together), and why."""
    if tensor.layer_class is LayerClass.INPUT:
        return HOST, "input layer: looked up row by row, stays on the host"
    if tensor.layer_class is LayerClass.OUTPUT:
        home = units.output
        where = "output layer"
    else:
        layer = tensor.layer or 0
        home = units.layers[layer]
        where = f"layer {layer}"
    if home == HOST:
        return HOST, f"{where}: not offloaded"
    return home, where
