"""What a plan puts on each device, in bytes."""

from collections import Counter
from collections.abc import Iterable, Sequence

from app.planner.plan import HOST, DeviceTotal, PlannedTensor, SplitTargets


def add_up(
    weights: Iterable[PlannedTensor], caches: Iterable[PlannedTensor], targets: SplitTargets
) -> tuple[DeviceTotal, ...]:
    """One total per device in request order, and the host's last if it is used without being listed."""
    names = [device.name for device in targets.devices]
    of_weights, of_caches = _sums(weights, names), _sums(caches, names)
    devices = list(targets.devices)
    if HOST not in names and (HOST in of_weights or HOST in of_caches):
        devices.append(targets.host)
    return tuple(
        DeviceTotal(
            name=device.name,
            weights_bytes=of_weights.get(device.name, 0),
            cache_bytes=of_caches.get(device.name, 0),
            free_bytes=device.free_bytes,
        )
        for device in devices
    )


def _sums(tensors: Iterable[PlannedTensor], names: Sequence[str]) -> dict[str, int]:
    sums = dict.fromkeys(names, 0)
    host_is_listed = HOST in sums
    counts: Counter[tuple[int, ...]] = Counter()  # most tensors share their slices' sizes with many others
    for tensor in tensors:
        counts[tensor.bytes_per_device] += 1
        if tensor.device == HOST and not host_is_listed:
            sums[HOST] = sums.get(HOST, 0) + tensor.nbytes
    for slices, count in counts.items():
        for name, nbytes in zip(names, slices, strict=True):
            sums[name] += nbytes * count
    return sums
