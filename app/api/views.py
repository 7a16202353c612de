"""What the edges show of devices, architectures and handles, as JSON: the same over HTTP and on the command line."""

from dataclasses import asdict
from typing import Any

from app.api import problems
from app.architectures.descriptor import Architecture
from app.devices.facts import DeviceFacts
from app.residency.handles import HandleView


def device_json(facts: DeviceFacts) -> dict[str, Any]:
    """A device: sizes in bytes, capabilities by their names on the wire."""
    return {
        "name": facts.name,
        "kind": facts.kind,
        "description": facts.description,
        "memory_bytes": facts.memory_bytes,
        "free_bytes": facts.free_bytes,
        "allocated_bytes": facts.allocated_bytes,
        "alignment_bytes": facts.alignment_bytes,
        "max_allocation_bytes": facts.max_allocation_bytes,
        "capabilities": facts.capabilities.as_json(),
    }


def architecture_json(architecture: Architecture) -> dict[str, Any]:
    """An architecture: its capabilities by name, and why its models are refused, if they are."""
    return {
        "name": architecture.name,
        "refused": architecture.refused,
        "capabilities": asdict(architecture.capabilities),
    }


def location_of(handle_id: str) -> str:
    """Where a handle is found."""
    return f"/v1/handles/{handle_id}"


def handle_json(view: HandleView) -> dict[str, Any]:
    """A handle; its error, if it has one, is a whole problem."""
    shown = view.as_json()
    if view.failure is not None:
        shown["error"] = problems.problem(view.failure.as_error(), instance=location_of(view.id))
    return shown
