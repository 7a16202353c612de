"""How a model's bytes get into memory: one mode for the load, one mode and one reason for every device.

Pure: opens no file, touches no device. `negotiate` decides before anything is allocated; the `…_refused` functions
give the decision that is left when the system says no later on.

    auto       mmap if every device supports it, a tensor can stay mapped and the file system is local; else none
    mmap       every tensor that stays whole on a device that can take host memory is the mapping, the rest is read;
               where that cannot be, the load fails
    mlock      read into memory and lock it; a refusal is a warning
    direct_io  read past the page cache; a refusal is a warning
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from app.devices.facts import DeviceFacts
from app.errors import PlanError
from app.modelfile.source import is_network
from app.units import human_bytes

_HOST_KIND: Final = "host"


class LoadMode(StrEnum):
    """What a request may ask for; every one but `auto` is also what a decision may say of a device."""

    AUTO = "auto"
    NONE = "none"
    MMAP = "mmap"
    MLOCK = "mlock"
    MMAP_MLOCK = "mmap+mlock"
    DIRECT_IO = "direct_io"

    @property
    def maps(self) -> bool:
        """Whether tensors may be the mapped file."""
        return self in (LoadMode.MMAP, LoadMode.MMAP_MLOCK)

    @property
    def locks(self) -> bool:
        """Whether memory is to be locked."""
        return self in (LoadMode.MLOCK, LoadMode.MMAP_MLOCK)


class FallbackReason(StrEnum):
    """Why a load went on in another mode than it set out with. A closed set: it is a metric's label."""

    DEVICE_WITHOUT_MMAP = "device_without_mmap"
    NOTHING_TO_MAP = "nothing_to_map"
    NETWORK_FILE_SYSTEM = "network_file_system"
    MAP_REFUSED = "map_refused"
    LOCK_REFUSED = "lock_refused"
    DIRECT_IO_REFUSED = "direct_io_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """One step down, counted by `load_mode_fallbacks_total`."""

    from_mode: LoadMode
    to_mode: LoadMode
    reason: FallbackReason


def _fallback(from_mode: LoadMode, to_mode: LoadMode, reason: FallbackReason) -> Fallback:
    return Fallback(from_mode=from_mode, to_mode=to_mode, reason=reason)


FALLBACKS: Final[tuple[Fallback, ...]] = (
    _fallback(LoadMode.MMAP, LoadMode.NONE, FallbackReason.DEVICE_WITHOUT_MMAP),
    _fallback(LoadMode.MMAP, LoadMode.NONE, FallbackReason.NOTHING_TO_MAP),
    _fallback(LoadMode.MMAP, LoadMode.NONE, FallbackReason.NETWORK_FILE_SYSTEM),
    _fallback(LoadMode.MMAP, LoadMode.NONE, FallbackReason.MAP_REFUSED),
    _fallback(LoadMode.MLOCK, LoadMode.NONE, FallbackReason.LOCK_REFUSED),
    _fallback(LoadMode.MMAP_MLOCK, LoadMode.MMAP, FallbackReason.LOCK_REFUSED),
    _fallback(LoadMode.DIRECT_IO, LoadMode.NONE, FallbackReason.DIRECT_IO_REFUSED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingReason:
    """What one device does, and why."""

    device: str
    mode: LoadMode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingDecision:
    """The outcome: `resolved` is never `auto`; `reasons` has one entry per device, in the order given."""

    requested: LoadMode
    resolved: LoadMode
    reasons: tuple[MappingReason, ...]
    fallbacks: tuple[Fallback, ...] = ()
    warnings: tuple[str, ...] = ()

    def mode_of(self, device: str) -> LoadMode:
        """The mode of `device`; `none` for a device the decision does not know."""
        return next((reason.mode for reason in self.reasons if reason.device == device), LoadMode.NONE)

    def as_json(self) -> dict[str, object]:
        """`{requested, resolved, reasons: [{device, mode, reason}]}`."""
        reasons = [{"device": it.device, "mode": it.mode.value, "reason": it.reason} for it in self.reasons]
        return {"requested": self.requested.value, "resolved": self.resolved.value, "reasons": reasons}


def negotiate(
    mode: LoadMode,
    devices: Sequence[DeviceFacts],
    *,
    mappable: Mapping[str, int],
    filesystem: str,
    empty: Collection[str] = (),
    elsewhere: Collection[str] = (),
) -> MappingDecision:
    """Decide the mode and every device's part in it.

    `devices` are the selected ones, and the host where it holds tensors. `mappable` says for each device how many
    bytes of tensors stay whole there (absent: none). `filesystem` is the kind the model's files lie on. The devices in
    `empty` get no tensor, those `elsewhere` can be planned on alone: both change what is said, not what is decided.
    Raises PlanError `unsupported_load_mode` where a forced mapping cannot be.
    """
    decision = _decide(mode, devices, mappable, filesystem, elsewhere)
    nothing = "holds no tensor of this model: nothing to map or to read"
    return replace(
        decision,
        reasons=tuple(
            replace(it, mode=LoadMode.NONE, reason=nothing) if it.device in empty else it for it in decision.reasons
        ),
    )


def _decide(
    mode: LoadMode,
    devices: Sequence[DeviceFacts],
    mappable: Mapping[str, int],
    filesystem: str,
    elsewhere: Collection[str],
) -> MappingDecision:
    match mode:
        case LoadMode.AUTO:
            return _automatic(devices, mappable, filesystem, elsewhere)
        case LoadMode.MMAP | LoadMode.MMAP_MLOCK:
            obstacle = _obstacle(devices, mappable)
            if obstacle is not None:
                _, device, why = obstacle
                raise PlanError(
                    f"load_mode {mode.value} cannot be honoured: {why}", code="unsupported_load_mode", device=device
                )
            return _mapped(mode, mode, devices, mappable, elsewhere)
        case LoadMode.MLOCK:
            return MappingDecision(
                requested=mode, resolved=mode, reasons=tuple(_locked_copy(device) for device in devices)
            )
        case LoadMode.DIRECT_IO:
            why = "direct_io was asked for: read past the page cache, into memory of its own"
        case LoadMode.NONE:
            why = "none was asked for: read into memory of its own"
    return MappingDecision(requested=mode, resolved=mode, reasons=_alike(devices, mode, why))


def map_refused(decision: MappingDecision, detail: str) -> MappingDecision:
    """What is left of an automatic mapping the kernel or the device refused: everything is read.

    Raises PlanError `unsupported_load_mode` where the mapping was asked for.
    """
    if decision.requested is not LoadMode.AUTO:
        raise PlanError(
            f"load_mode {decision.requested.value} cannot be honoured: {detail}", code="unsupported_load_mode"
        )
    why = f"the mapping was refused ({detail}): read into memory of its own"
    return replace(
        decision,
        resolved=LoadMode.NONE,
        reasons=tuple(replace(it, mode=LoadMode.NONE, reason=why) for it in decision.reasons),
        fallbacks=(*decision.fallbacks, _fallback(LoadMode.MMAP, LoadMode.NONE, FallbackReason.MAP_REFUSED)),
        warnings=(*decision.warnings, f"the model is read, not mapped: {detail}"),
    )


def lock_refused(decision: MappingDecision, device: str, detail: str) -> MappingDecision:
    """The same load without locked memory on `device`; the fallback is counted once per load."""
    without = {LoadMode.MLOCK: LoadMode.NONE, LoadMode.MMAP_MLOCK: LoadMode.MMAP}
    resolved = without.get(decision.resolved, decision.resolved)
    fallbacks = decision.fallbacks
    if resolved is not decision.resolved:
        fallbacks = (*fallbacks, _fallback(decision.resolved, resolved, FallbackReason.LOCK_REFUSED))
    reasons = tuple(
        replace(it, mode=without[it.mode], reason=f"{it.reason}; the lock was refused ({detail})")
        if it.device == device and it.mode in without
        else it
        for it in decision.reasons
    )
    warning = f"memory of {device} is not locked: {detail}"
    return replace(
        decision,
        resolved=resolved,
        reasons=reasons,
        fallbacks=fallbacks,
        warnings=decision.warnings if warning in decision.warnings else (*decision.warnings, warning),
    )


def direct_io_refused(decision: MappingDecision, detail: str) -> MappingDecision:
    """The same load through the page cache; the fallback is counted once per load."""
    if decision.resolved is not LoadMode.DIRECT_IO:
        return decision
    return replace(
        decision,
        resolved=LoadMode.NONE,
        reasons=tuple(
            replace(it, mode=LoadMode.NONE, reason=f"direct_io was refused ({detail}): read through the page cache")
            for it in decision.reasons
        ),
        fallbacks=(*decision.fallbacks, _fallback(LoadMode.DIRECT_IO, LoadMode.NONE, FallbackReason.DIRECT_IO_REFUSED)),
        warnings=(*decision.warnings, f"the model is read through the page cache: {detail}"),
    )


def _obstacle(
    devices: Sequence[DeviceFacts], mappable: Mapping[str, int]
) -> tuple[FallbackReason, str | None, str] | None:
    """What stands against mapping anything, the device at fault if there is one, and a clause that says so."""
    for device in devices:
        if not device.capabilities.mmap_support:
            return FallbackReason.DEVICE_WITHOUT_MMAP, device.name, f"device {device.name} has no mmap_support"
    if not any(device.capabilities.buffer_from_host_ptr and mappable.get(device.name, 0) > 0 for device in devices):
        return FallbackReason.NOTHING_TO_MAP, None, "no tensor stays whole on a device that can take host memory"
    return None


def _automatic(
    devices: Sequence[DeviceFacts], mappable: Mapping[str, int], filesystem: str, elsewhere: Collection[str]
) -> MappingDecision:
    obstacle = _obstacle(devices, mappable)
    if obstacle is None and is_network(filesystem):
        why = f"the model lies on a network file system ({filesystem})"
        obstacle = FallbackReason.NETWORK_FILE_SYSTEM, None, why
    if obstacle is None:
        return _mapped(LoadMode.AUTO, LoadMode.MMAP, devices, mappable, elsewhere)
    reason, _, why = obstacle
    return MappingDecision(
        requested=LoadMode.AUTO,
        resolved=LoadMode.NONE,
        reasons=_alike(devices, LoadMode.NONE, f"{why}: read into memory of its own"),
        fallbacks=(_fallback(LoadMode.MMAP, LoadMode.NONE, reason),),
    )


def _mapped(
    requested: LoadMode,
    resolved: LoadMode,
    devices: Sequence[DeviceFacts],
    mappable: Mapping[str, int],
    elsewhere: Collection[str],
) -> MappingDecision:
    def one(device: DeviceFacts) -> MappingReason:
        if not device.capabilities.buffer_from_host_ptr:
            why = "has memory of its own (no buffer_from_host_ptr): read"
        elif not mappable.get(device.name, 0):
            why = "has no tensor all to itself, only slices and copies: read"
        else:
            are = "would be" if device.name in elsewhere else "are"
            whole = human_bytes(mappable[device.name])
            why = f"the tensors it has all to itself ({whole}) {are} the mapped file; slices and copies {are} read"
            if resolved.locks:
                why += "; locking is attempted"
            return MappingReason(device=device.name, mode=resolved, reason=why)
        if resolved.locks and device.kind == _HOST_KIND:
            return MappingReason(device=device.name, mode=LoadMode.MLOCK, reason=f"{why}; locking is attempted")
        return MappingReason(device=device.name, mode=LoadMode.NONE, reason=why)

    return MappingDecision(requested=requested, resolved=resolved, reasons=tuple(map(one, devices)))


def _locked_copy(device: DeviceFacts) -> MappingReason:
    if device.kind == _HOST_KIND:
        why = "mlock was asked for: read into memory of its own; locking is attempted"
        return MappingReason(device=device.name, mode=LoadMode.MLOCK, reason=why)
    why = "mlock was asked for, but this is no host memory: read, nothing to lock"
    return MappingReason(device=device.name, mode=LoadMode.NONE, reason=why)


def _alike(devices: Sequence[DeviceFacts], mode: LoadMode, why: str) -> tuple[MappingReason, ...]:
    return tuple(MappingReason(device=device.name, mode=mode, reason=why) for device in devices)
