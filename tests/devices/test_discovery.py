import pytest

from app.devices.discovery import discover
from app.devices.simulated_spec import SimulatedSpec
from app.errors import RequestError
from app.units import GIB


def test_the_host_is_always_there() -> None:
    """With nothing asked for there is one device, `host`, with the memory the machine has."""
    found = discover()
    assert ["host"] == list(found)
    facts = found["host"].facts()
    assert ("host", "host") == (facts.name, facts.kind)
    assert facts.memory_bytes == facts.free_bytes > 0


def test_devices_are_found_in_order() -> None:
    """The host first, then host devices and simulated ones as given, each with its own capacity."""
    specs = [SimulatedSpec.parse("sim0:8GiB,free=1GiB"), SimulatedSpec.parse("big:1TiB")]
    found = discover(3 * GIB, [("host0", GIB), ("host1", 2 * GIB)], specs)
    assert [
        ("host", "host", 3 * GIB),
        ("host0", "host", GIB),
        ("host1", "host", 2 * GIB),
        ("sim0", "simulated", GIB),
        ("big", "simulated", 1024 * GIB),
    ] == [(name, device.facts().kind, device.facts().free_bytes) for name, device in found.items()]


def test_host_devices_that_are_only_counted_share_what_the_host_has() -> None:
    """Without sizes `host` and the others have even parts of the capacity; one that is given is taken at its word."""

    def sizes(*devices: tuple[str, int | None]) -> list[int]:
        return [device.facts().memory_bytes for device in discover(3 * GIB, devices).values()]

    assert [GIB, GIB, GIB] == sizes(("host0", None), ("host1", None))
    assert [3 * GIB, 8 * GIB] == sizes(("host0", 8 * GIB))


@pytest.mark.parametrize("name", ["host", "host0", "sim0"])
def test_two_devices_of_one_name_are_refused(name: str) -> None:
    """A name can be given once, and `host` not at all."""
    specs = [SimulatedSpec.parse("sim0:1GiB"), SimulatedSpec(name=name, memory_bytes=1)]
    with pytest.raises(RequestError, match=name) as caught:
        discover(GIB, [("host0", GIB)], specs)
    assert ("simulated_devices", name) == (caught.value.facts["field"], caught.value.facts["device"])
