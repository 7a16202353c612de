"""What a client asks for, and every check of it that needs no file: after this, only the model and the devices can err.

The same request plans and loads. It is a value of its own: whatever the client handed over was copied into tuples.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from app.devices.facts import Capabilities
from app.errors import PlanError, RequestError
from app.loading.context import ContextRequest, check_context
from app.loading.negotiation import LoadMode
from app.planner.patterns import check_patterns
from app.planner.plan import HOST, MAX_DEVICES, Allocator, Override, SplitMode

MAX_LISTED_DEVICES: Final = 128  # more is no fleet one model is spread over, and would only make plans large
MAX_OVERRIDES: Final = 4096  # llama_max_tensor_buft_overrides
MAX_NAME_LENGTH: Final = 128
_INT32: Final = 2**31
_INT64: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredDevice:
    """A device that exists in the request alone. Sizes in bytes; `free_bytes` None means all of `memory_bytes`.

    Named `host` (of kind `host`) it sets the host's memory for this plan. Only kind `simulated` can be loaded on.
    """

    name: str
    kind: str
    memory_bytes: int
    free_bytes: int | None = None
    capabilities: Capabilities = field(default_factory=Capabilities)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """One wish: which model, spread how, over which devices, read how. The defaults are the wire's.

    `model` is a path as the client wrote it. `devices` None: all but the host, or the host where there is no other.
    `tensor_split` is a share per device, in any unit. `n_gpu_layers` below zero: all. `context` None: no caches.
    """

    model: str
    split_mode: SplitMode = SplitMode.LAYER
    devices: tuple[str | DeclaredDevice, ...] | None = None
    tensor_split: tuple[float, ...] | None = None
    main_device: str | None = None
    n_gpu_layers: int = -1
    overrides: tuple[Override, ...] = ()
    load_mode: LoadMode = LoadMode.AUTO
    context: ContextRequest | None = None
    allocator: Allocator = Allocator.REFERENCE

    @property
    def declared(self) -> tuple[DeclaredDevice, ...]:
        """The devices that only this request knows."""
        return tuple(device for device in self.devices or () if isinstance(device, DeclaredDevice))

    def canonical(self) -> dict[str, Any]:
        """The request as JSON values with every default written out: equal requests give equal values."""
        return {
            "model": self.model,
            "split_mode": self.split_mode.value,
            "devices": None if self.devices is None else [_device_json(device) for device in self.devices],
            "tensor_split": None if self.tensor_split is None else list(self.tensor_split),
            "main_device": self.main_device,
            "n_gpu_layers": max(-1, self.n_gpu_layers),
            "overrides": [[override.pattern, override.device] for override in self.overrides],
            "load_mode": self.load_mode.value,
            "context": None if self.context is None else self.context.canonical(),
            "allocator": self.allocator.value,
        }

    def fingerprint(self) -> str:
        """A hash of `canonical`, in hex: two requests are the same wish if and only if theirs are equal."""
        return digest(self.canonical())


def digest(value: object) -> str:
    """The SHA-256 of a JSON value written canonically, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def selected_names(devices: tuple[str | DeclaredDevice, ...] | None, known: Collection[str]) -> tuple[str, ...]:
    """The names of the devices a request spreads over, in its order; `known` are the daemon's own, in theirs.

    A declared host only tells the host's memory, unless it is all there is.
    """
    if devices is None:
        return tuple(name for name in known if name != HOST) or (HOST,)
    names = tuple(
        device if isinstance(device, str) else device.name
        for device in devices
        if isinstance(device, str) or device.name != HOST
    )
    return names or tuple(device.name for device in devices if isinstance(device, DeclaredDevice))


def check_request(request: PlanRequest, known: Collection[str]) -> None:
    """Everything that can be wrong with a request before its file is opened; `known` names the daemon's devices.

    Raises RequestError (with `field`) for what cannot be meant, PlanError for what no device here can do.
    """
    _check_model(request.model)
    _check_devices(request.devices, known)
    names = selected_names(request.devices, known)
    _check_mode(request.split_mode, names)
    _check_ratios(request.tensor_split, len(names))
    if request.main_device is not None and request.main_device not in names:
        raise _bad(
            "main_device", f'main_device: "{_shown(request.main_device)}" is none of {_listed(names)}', names=names
        )
    if not -_INT32 <= request.n_gpu_layers < _INT32:
        raise _bad("n_gpu_layers", f"n_gpu_layers: {_number(request.n_gpu_layers)} does not fit a 32-bit integer")
    _check_overrides(request.overrides, names)
    if request.context is not None:
        check_context(request.context)


def float32_weights(ratios: tuple[float, ...]) -> tuple[float, ...]:
    """The ratios as the 32-bit floats that planning reckons with; too large ones become infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return tuple(float(np.float32(ratio)) for ratio in ratios)


def _check_model(model: str) -> None:
    if not model:
        raise _bad("model", "model: an empty path names no file")
    if "://" in model:
        raise _bad("model", "model: only paths are read; planning from a URL is not built yet")
    try:
        encoded = os.fsencode(model)
    except UnicodeEncodeError as error:
        raise _bad("model", "model: the path holds characters that no file name can have") from error
    if b"\0" in encoded:
        raise _bad("model", "model: a path cannot hold a zero byte")


def _check_devices(devices: tuple[str | DeclaredDevice, ...] | None, known: Collection[str]) -> None:
    if devices is None:
        return
    if not devices:
        raise _bad("devices", f"devices: an empty list leaves nothing to load on; known are {_listed(known)}")
    if len(devices) > MAX_LISTED_DEVICES:
        raise _bad("devices", f"devices: {len(devices)} are listed, at most {MAX_LISTED_DEVICES} are taken")
    seen: set[str] = set()
    for index, device in enumerate(devices):
        spot = f"devices[{index}]"
        name = device if isinstance(device, str) else device.name
        if name in seen:
            raise _bad(spot, f'{spot}: "{_shown(name)}" is listed twice')
        seen.add(name)
        if isinstance(device, DeclaredDevice):
            _check_declared(spot, device)
        elif name not in known:
            raise _bad(
                spot,
                f'{spot}: no device "{_shown(name)}"; known are {_listed(known)}. More are made by the setting'
                " host_devices (GGUFD_HOST_DEVICES=2: host0, host1), or declared with their memory (on the command"
                " line: name=8GiB)",
                names=tuple(known),
            )


def _check_declared(spot: str, device: DeclaredDevice) -> None:
    if not device.name.isprintable() or not 0 < len(device.name) <= MAX_NAME_LENGTH:
        raise _bad(f"{spot}.name", f"{spot}.name: 1 to {MAX_NAME_LENGTH} printable characters make a name")
    if not device.kind.isprintable() or not 0 < len(device.kind) <= MAX_NAME_LENGTH:
        raise _bad(f"{spot}.kind", f"{spot}.kind: 1 to {MAX_NAME_LENGTH} printable characters make a kind")
    if device.name == HOST and device.kind != HOST:
        raise _bad(f"{spot}.kind", f'{spot}.kind: the device "{HOST}" is the host, of kind "{HOST}"')
    if not 0 <= device.memory_bytes < _INT64:
        raise _bad(f"{spot}.memory_bytes", f"{spot}.memory_bytes: {_number(device.memory_bytes)} is no memory size")
    if device.free_bytes is not None and not 0 <= device.free_bytes <= device.memory_bytes:
        raise _bad(
            f"{spot}.free_bytes",
            f"{spot}.free_bytes: {_number(device.free_bytes)} is not within 0 and {device.memory_bytes}",
        )


def _check_mode(mode: SplitMode, names: tuple[str, ...]) -> None:
    if mode is SplitMode.ROW:
        raise PlanError(
            "split_mode: row needs devices with split buffers, and no device has them",
            code="unsupported_split",
            capability="split_buffer",
            field="split_mode",
        )
    if mode is SplitMode.TENSOR and len(names) > MAX_DEVICES:
        raise PlanError(
            f"devices: {len(names)} devices cannot share a tensor, at most {MAX_DEVICES} can",
            code="unsupported_split",
            field="devices",
            expected=MAX_DEVICES,
            found=len(names),
        )


def _check_ratios(ratios: tuple[float, ...] | None, n_devices: int) -> None:
    if ratios is None:
        return
    weights = float32_weights(ratios)
    for index, (ratio, weight) in enumerate(zip(ratios, weights, strict=True)):
        if not np.isfinite(weight) or weight < 0:
            raise _bad("tensor_split", f"tensor_split[{index}]: {ratio} is not a finite share of zero or more")
        if index >= n_devices and weight != 0:
            raise _bad("tensor_split", f"tensor_split[{index}]: {ratio} is for a device beyond the {n_devices} chosen")
    with np.errstate(over="ignore"):
        total = np.add.accumulate(np.array((0.0, *weights), dtype=np.float32))[-1]
    if not np.isfinite(total):
        raise _bad("tensor_split", "tensor_split: the sum of the shares overflows a 32-bit float")


def _check_overrides(overrides: tuple[Override, ...], names: tuple[str, ...]) -> None:
    if len(overrides) > MAX_OVERRIDES:
        raise _bad("overrides", f"overrides: {len(overrides)} are given, at most {MAX_OVERRIDES} are taken")
    places = (*names, HOST) if HOST not in names else names
    for index, override in enumerate(overrides):
        spot = f"overrides[{index}]"
        if override.device not in places:
            raise _bad(
                f"{spot}.device",
                f'{spot}.device: "{_shown(override.device)}" is none of {_listed(places)}',
                names=places,
            )
    check_patterns([override.pattern for override in overrides], "overrides")


def _device_json(device: str | DeclaredDevice) -> str | dict[str, Any]:
    if isinstance(device, str):
        return device
    return {
        "name": device.name,
        "kind": device.kind,
        "memory_bytes": device.memory_bytes,
        "free_bytes": device.memory_bytes if device.free_bytes is None else device.free_bytes,
        "capabilities": device.capabilities.as_json(),
    }


def _bad(field: str, message: str, *, names: Collection[str] | None = None) -> RequestError:
    if names is not None:
        return RequestError(message, field=field, devices=list(names))
    return RequestError(message, field=field)


def _number(value: int) -> str:
    """An integer from outside, for a message: Python refuses to write very long ones."""
    return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"


def _shown(name: str) -> str:
    """A name from outside, fit for a message."""
    return name.encode("unicode_escape").decode()[:MAX_NAME_LENGTH]


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "none"
