"""From a checked request and the devices' facts to what the planner is asked: defaults applied, names resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.devices.facts import DeviceFacts
from app.loading.request import PlanRequest, float32_weights, selected_names
from app.planner.plan import HOST, PlanDevice, SplitTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The planner's question, and the facts of every device it is about: the chosen ones and the host, by name."""

    split: SplitTargets
    facts: Mapping[str, DeviceFacts]

    @property
    def chosen(self) -> tuple[DeviceFacts, ...]:
        """The facts of the devices to spread over, in request order."""
        return tuple(self.facts[device.name] for device in self.split.devices)


def resolve_targets(
    request: PlanRequest, known: Mapping[str, DeviceFacts], declared: Mapping[str, DeviceFacts]
) -> Targets:
    """The targets of a request that `check_request` accepted.

    `known` are the daemon's devices in its order (the host among them), `declared` the request's own by name; a
    declared one stands before a known one of the same name. Shares that are all zero are no shares.
    """
    facts = {**known, **declared}
    names = selected_names(request.devices, tuple(known))
    return Targets(
        split=SplitTargets(
            mode=request.split_mode,
            devices=tuple(_plan_device(facts[name]) for name in names),
            host=_plan_device(facts[HOST]),
            tensor_split=_shares(request.tensor_split, len(names)),
            main_device=0 if request.main_device is None else names.index(request.main_device),
            n_gpu_layers=request.n_gpu_layers,
            overrides=request.overrides,
            allocator=request.allocator,
            context=None if request.context is None else request.context.memory_request(),
        ),
        facts={name: facts[name] for name in dict.fromkeys((*names, HOST))},
    )


def _plan_device(facts: DeviceFacts) -> PlanDevice:
    return PlanDevice(
        name=facts.name, kind=facts.kind, memory_bytes=facts.memory_bytes, free_bytes=max(0, facts.free_bytes)
    )


def _shares(ratios: tuple[float, ...] | None, n_devices: int) -> tuple[float, ...] | None:
    """One 32-bit weight per device; missing ones are zero, and a tail beyond the devices is (checked) zero."""
    if ratios is None:
        return None
    weights = float32_weights(ratios)[:n_devices]
    return (*weights, *[0.0] * (n_devices - len(weights))) if any(weights) else None
