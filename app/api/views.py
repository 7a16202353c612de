"""What the edges show of devices, architectures and handles, as JSON: the same over HTTP and on the command line."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import quote

from app.api import problems
from app.architectures.descriptor import Architecture
from app.architectures.hparams import RopeType
from app.devices.facts import DeviceFacts
from app.modelfile.types import TensorInfo
from app.residency.description import Description
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


ROPE_BY_FILE: Final = "by file"


def catalog_json(catalog: Iterable[Architecture]) -> dict[str, Any]:
    """The catalog: every architecture."""
    return {"architectures": [architecture_json(one) for one in catalog]}


def architecture_json(architecture: Architecture) -> dict[str, Any]:
    """An architecture: its capabilities by name, its rotary type, and why its models are refused, if they are."""
    rope = architecture.rope
    return {
        "name": architecture.name,
        "refused": architecture.refused,
        "rope": rope.name.lower() if isinstance(rope, RopeType) else ROPE_BY_FILE,
        "capabilities": asdict(architecture.capabilities),
    }


def file_json(
    description: Description, path: str, page: dict[str, Any] | None = None, tensors: Sequence[TensorInfo] | None = None
) -> dict[str, Any]:
    """Everything about a file, and a page of its tensors (None: all). Its problem, if it has one, is a whole one."""
    problem = description.problem
    details = description.details()
    listed = description.tensors() if tensors is None else tensors
    return {
        "path": path,
        **details,
        "problem": None if problem is None else problems.problem(problem),
        **(page or {}),
        "tensors": description.tensors_json(listed),
    }


def location_of_file(path: str) -> str:
    """Where a file that a load calls `path` is described."""
    return f"/v1/files/{quote(path, safe='/')}"


def location_of(handle_id: str) -> str:
    """Where a handle is found."""
    return f"/v1/handles/{handle_id}"


def handle_json(view: HandleView) -> dict[str, Any]:
    """A handle; its error, if it has one, is a whole problem."""
    shown = view.as_json()
    if view.failure is not None:
        shown["error"] = problems.problem(view.failure.as_error(), instance=location_of(view.id))
    return shown
