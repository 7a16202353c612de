"""Small worlds for tests of loads: a folder of models, host devices and simulated ones, and loads that can be held."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.architectures.registry import load_catalog
from app.devices.backend import Backend, Buffer
from app.devices.discovery import discover
from app.devices.facts import DeviceFacts
from app.devices.simulated_spec import SimulatedSpec
from app.loading.request import PlanRequest
from app.loading.run import World
from app.modelfile.source import MappedRange
from app.residency.handles import HandleView
from app.service import LoaderService

CATALOG = load_catalog()
MIB = 1 << 20


def world(
    root: Path,
    *,
    simulated: Sequence[str] = (),
    hosts: int = 2,
    extra: Mapping[str, Backend] | None = None,
    **more: Any,
) -> World:
    """A world whose models lie under `root`, with `host`, `hosts` more of 64 MiB each, and simulated devices."""
    backends = discover(
        256 * MIB,
        [(f"host{n}", 64 * MIB) for n in range(hosts)],
        [SimulatedSpec.parse(text) for text in simulated],
    )
    return World(catalog=CATALOG, backends={**backends, **(extra or {})}, roots=(root,), **more)


def allocated(place: World) -> dict[str, int]:
    """What each device of the world has given out, where it is anything."""
    return {
        name: backend.facts().allocated_bytes
        for name, backend in place.backends.items()
        if backend.facts().allocated_bytes
    }


def ended(service: LoaderService, handle_id: str, seconds: float = 20) -> HandleView:
    """The handle as it was when its load ended."""
    found: list[HandleView] = []
    there = threading.Event()

    def tell(view: HandleView) -> None:
        found.append(view)
        there.set()

    service.when_ended(handle_id, tell)
    assert there.wait(seconds), f"the load is still {service.handle(handle_id).state}"
    return found[0]


class HeldBackend:
    """A device that lets nobody allocate until `gate` is set; `reached` says that somebody waits. Deaf to `stop`."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.gate = threading.Event()
        self.reached = threading.Event()

    @property
    def name(self) -> str:
        return self.inner.name

    def facts(self) -> DeviceFacts:
        return self.inner.facts()

    def allocate(self, nbytes: int, accounted_bytes: int, stop: threading.Event | None = None) -> Buffer:
        self.reached.set()
        assert self.gate.wait(20)
        return self.inner.allocate(nbytes, accounted_bytes, stop)

    def import_host(self, mapped: MappedRange, accounted_bytes: int) -> Buffer | None:
        return None


def held(name: str = "held") -> HeldBackend:
    """A held device of 64 MiB."""
    return HeldBackend(SimulatedSpec.parse(f"{name}:64MiB,no-mmap_support").build())


Start = Callable[..., LoaderService]


def services() -> Iterator[Start]:
    """For a fixture: a function that starts services, all of which are closed at the end."""
    started: list[LoaderService] = []

    def begin(place: World, **more: Any) -> LoaderService:
        started.append(LoaderService(place, **more))
        return started[-1]

    yield begin
    for service in started:
        assert service.close(20)


def request(**changes: Any) -> PlanRequest:
    """A wish for `m.gguf`, with changes."""
    return replace(PlanRequest(model="m.gguf"), **changes)


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait for something that nobody announces."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def blocked(service: LoaderService, device: HeldBackend) -> HandleView:
    """A load that stands still in `allocating`."""
    view = service.submit(request(devices=(device.name,)))
    assert device.reached.wait(10)
    return view
