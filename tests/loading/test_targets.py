from dataclasses import replace
from typing import Any

import pytest

from app.devices.facts import Capabilities, DeviceFacts
from app.loading.request import DeclaredDevice, PlanRequest
from app.loading.targets import resolve_targets
from app.planner.plan import Override, SplitMode

MIB = 1 << 20


def facts(name: str, kind: str = "host", free: int = MIB) -> DeviceFacts:
    return DeviceFacts(
        name=name,
        kind=kind,
        description="",
        memory_bytes=2 * MIB,
        free_bytes=free,
        allocated_bytes=2 * MIB - free,
        alignment_bytes=32,
        max_allocation_bytes=2 * MIB,
        capabilities=Capabilities(),
    )


KNOWN = {name: facts(name) for name in ("host", "host0", "host1")}


def request(**changes: Any) -> PlanRequest:
    return replace(PlanRequest(model="m.gguf"), **changes)


def test_defaults_are_applied() -> None:
    """All devices but the host in their order, the first as main, all layers, no shares."""
    targets = resolve_targets(request(), KNOWN, {})

    assert [device.name for device in targets.split.devices] == ["host0", "host1"]
    assert targets.split.host.name == "host"
    assert targets.split.main_device == 0
    assert targets.split.n_gpu_layers == -1
    assert targets.split.tensor_split is None
    assert list(targets.facts) == ["host0", "host1", "host"]
    assert [device.name for device in targets.chosen] == ["host0", "host1"]


def test_devices_keep_the_requests_order() -> None:
    """The order in the request is the order in the plan, and main_device counts in it."""
    targets = resolve_targets(request(devices=("host1", "host0"), main_device="host0"), KNOWN, {})

    assert [device.name for device in targets.split.devices] == ["host1", "host0"]
    assert targets.split.main_device == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1.0,), (1.0, 0.0)),
        ((3.0, 1.0, 0.0, 0.0), (3.0, 1.0)),
        ((0.0, 0.0), None),
        ((), None),
        ((1e-50, 0.0), None),
        ((0.1, 0.2), (0.10000000149011612, 0.20000000298023224)),
    ],
)
def test_shares_become_one_32_bit_weight_per_device(
    given: tuple[float, ...], expected: tuple[float, ...] | None
) -> None:
    """Short lists are filled with zeros, tails of zeros are cut, nothing but zeros is no list at all."""
    assert resolve_targets(request(tensor_split=given), KNOWN, {}).split.tensor_split == expected


def test_a_declared_host_sets_the_hosts_memory_and_gets_no_layers() -> None:
    """Beside another device the declared host is the plan's host and not one of its devices."""
    host = DeclaredDevice(name="host", kind="host", memory_bytes=7)
    other = DeclaredDevice(name="a", kind="opencl", memory_bytes=9)
    declared = {"host": replace(facts("host"), free_bytes=7), "a": facts("a", "opencl", free=9)}
    targets = resolve_targets(request(devices=(host, other)), KNOWN, declared)

    assert [device.name for device in targets.split.devices] == ["a"]
    assert targets.split.host.free_bytes == 7
    assert targets.facts["host"].free_bytes == 7


def test_what_the_planner_needs_is_passed_on() -> None:
    """Mode, overrides and layer count arrive as they were asked for."""
    overrides = (Override(pattern="a", device="host"),)
    split = resolve_targets(request(split_mode=SplitMode.TENSOR, overrides=overrides, n_gpu_layers=3), KNOWN, {}).split

    assert (split.mode, split.overrides, split.n_gpu_layers) == (SplitMode.TENSOR, overrides, 3)


def test_a_driver_that_reports_less_than_nothing_has_nothing_free() -> None:
    """Free memory below zero, as some drivers report, plans as zero."""
    known = {**KNOWN, "host0": facts("host0", free=-5)}

    assert resolve_targets(request(), known, {}).split.devices[0].free_bytes == 0
