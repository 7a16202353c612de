"""Which devices there are: the host always, more host devices and simulated ones as the settings say."""

from collections.abc import Sequence

from app.devices.backend import Backend
from app.devices.host import HostBackend
from app.devices.host_memory import available_memory
from app.devices.simulated_spec import SimulatedSpec
from app.errors import RequestError

HOST = "host"


def discover(
    host_capacity_bytes: int | None = None,
    host_devices: Sequence[tuple[str, int | None]] = (),
    simulated: Sequence[SimulatedSpec] = (),
) -> dict[str, Backend]:
    """The devices by name, `host` first, then in the order given.

    `host_capacity_bytes` None: what the machine, or the control group, has available now. `host_devices` are names
    and capacities in bytes; those without one (None) share the host's capacity evenly with `host`, so that together
    they cannot take more than there is. A capacity that was given is taken at its word.
    Raises RequestError if two devices have one name.
    """
    capacity = available_memory() if host_capacity_bytes is None else host_capacity_bytes
    share = capacity // (1 + sum(nbytes is None for _, nbytes in host_devices))
    backends: dict[str, Backend] = {HOST: HostBackend(HOST, share)}
    for name, nbytes in host_devices:
        _add(backends, HostBackend(name, share if nbytes is None else nbytes), "host_devices")
    for spec in simulated:
        _add(backends, spec.build(), "simulated_devices")
    return backends


def _add(backends: dict[str, Backend], backend: Backend, field: str) -> None:
    if backend.name in backends:
        raise RequestError(f"{field}: two devices are named {backend.name!r}", field=field, device=backend.name)
    backends[backend.name] = backend
