"""Simulated devices as a line of text, for settings and flags: `sim0:8GiB,fail_allocation=2,keep_bytes,no-events`.

NAME:MEMORY[,OPTION…]
free=SIZE             free at first (default: all of it)
alignment=N           of tensors in a buffer, in bytes, a power of two (128)
max_allocation=SIZE   the largest single buffer (all of it)
keep_bytes            keep what is written, so that it can be read back
no-async  no-host_buffer  no-buffer_from_host_ptr  no-events  no-mmap_support
fail_allocation=N     the Nth allocation fails
fail_write=N          the Nth write fails
fail_after=SIZE       writes fail once so many bytes were written
fail_import           taking a mapped file fails
refuse_import         taking a mapped file is declined
bandwidth=SIZE        bytes per second, all writes together
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from app.devices.facts import Capabilities
from app.devices.simulated import ALIGNMENT_BYTES, SimulatedBackend, SimulatedFailures
from app.errors import RequestError
from app.units import parse_bytes

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSpec:
    """One simulated device to be made. Sizes in bytes; `free_bytes` and `max_allocation_bytes` None: all of it."""

    name: str
    memory_bytes: int
    free_bytes: int | None = None
    capabilities: Capabilities = field(default_factory=Capabilities)
    alignment_bytes: int = ALIGNMENT_BYTES
    max_allocation_bytes: int | None = None
    keep_bytes: bool = False
    failures: SimulatedFailures = field(default_factory=SimulatedFailures)

    @classmethod
    def parse(cls, text: str) -> SimulatedSpec:
        """The spec that `text` means (see the module). Raises RequestError naming what is wrong."""
        head, *options = (part.strip() for part in text.split(","))
        name, colon, memory = head.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise _refusal(text, f"{head!r} is not NAME:MEMORY")
        values: dict[str, Any] = {"name": name, "memory_bytes": _size(text, memory)}
        failures: dict[str, Any] = {}
        capabilities: dict[str, Any] = {}
        seen: set[str] = set()
        for option in options:
            key, equals, value = option.partition("=")
            if key in seen:
                raise _refusal(text, f"{key} is given twice")
            seen.add(key)
            if not equals and key in _CAPABILITY_OF:
                capabilities[_CAPABILITY_OF[key]] = False
            elif not equals and key == "keep_bytes":
                values["keep_bytes"] = True
            elif not equals and key in ("fail_import", "refuse_import"):
                failures[key] = True
            elif equals and key in _SPEC_VALUES:
                target, read = _SPEC_VALUES[key]
                values[target] = read(text, value)
            elif equals and key in _FAILURE_VALUES:
                target, read = _FAILURE_VALUES[key]
                failures[target] = read(text, value)
            else:
                raise _refusal(text, f"{option!r} is no option; there are {', '.join(OPTIONS)}")
        if values.get("free_bytes", 0) > values["memory_bytes"]:
            raise _refusal(text, "free is more than there is")
        return cls(**values, capabilities=Capabilities(**capabilities), failures=SimulatedFailures(**failures))

    def build(self) -> SimulatedBackend:
        """The device."""
        return SimulatedBackend(
            self.name,
            self.memory_bytes,
            free_bytes=self.free_bytes,
            capabilities=self.capabilities,
            alignment_bytes=self.alignment_bytes,
            max_allocation_bytes=self.max_allocation_bytes,
            keep_bytes=self.keep_bytes,
            failures=self.failures,
        )


def _refusal(text: str, what: str) -> RequestError:
    return RequestError(f"simulated device {text!r}: {what}", field="simulated_devices")


def _size(text: str, value: str) -> int:
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise _refusal(text, str(error)) from error


def _positive_size(text: str, value: str) -> int:
    size = _size(text, value)
    if size == 0:
        raise _refusal(text, "0 is too little")
    return size


def _count(text: str, value: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,17}", value, re.ASCII):
        raise _refusal(text, f"{value!r} is not a whole number from 1")
    return int(value)


def _power_of_two(text: str, value: str) -> int:
    count = _count(text, value)
    if count & (count - 1):
        raise _refusal(text, f"{value} is not a power of two")
    return count


_CAPABILITY_OF: Final = {
    f"no-{'async' if it.name == 'asynchronous' else it.name}": it.name for it in fields(Capabilities)
}
_SPEC_VALUES: Final[dict[str, tuple[str, Callable[[str, str], int]]]] = {
    "free": ("free_bytes", _size),
    "alignment": ("alignment_bytes", _power_of_two),
    "max_allocation": ("max_allocation_bytes", _positive_size),
}
_FAILURE_VALUES: Final[dict[str, tuple[str, Callable[[str, str], int]]]] = {
    "fail_allocation": ("fail_allocation", _count),
    "fail_write": ("fail_write", _count),
    "fail_after": ("fail_after_bytes", _size),
    "bandwidth": ("bytes_per_second", _positive_size),
}
OPTIONS: Final = tuple(
    sorted({*_CAPABILITY_OF, *_SPEC_VALUES, *_FAILURE_VALUES, "keep_bytes", "fail_import", "refuse_import"})
)
