import os
import threading
from pathlib import Path
from typing import Any

import pytest

from app.errors import (
    BusyError,
    CapacityError,
    ConflictError,
    FileError,
    GgufdError,
    NotFoundError,
    PlanError,
    RequestError,
)
from app.loading.lifecycle import STAGES, LoadState
from app.loading.negotiation import LoadMode
from app.loading.request import DeclaredDevice
from app.planner.plan import SplitMode
from app.service import ServiceLimits
from tests.builders import t0
from tests.worlds import MIB, Start, allocated, blocked, ended, held, request, services, world

T0_2 = 312_576


@pytest.fixture
def root(tmp_path: Path) -> Path:
    t0(tmp_path / "m.gguf")
    return tmp_path


start = pytest.fixture(services)


def test_a_load_is_accepted_queued_and_ends_ready(root: Path, start: Start) -> None:
    """The whole way: stages partition the time, bytes agree with the plan, the plan can be read."""
    place = world(root)
    service = start(place)
    accepted = service.submit(request(split_mode=SplitMode.TENSOR))
    view = ended(service, accepted.id)

    assert accepted.state is LoadState.QUEUED
    assert view.state is LoadState.READY
    assert [stage.stage for stage in view.stages] == list(STAGES)
    assert sum(stage.nanoseconds for stage in view.stages) == round(view.duration_seconds * 1e9)
    assert view.progress == 1.0
    assert view.planned_bytes == view.allocated_bytes == allocated(place)
    assert view.load_mode.resolved is LoadMode.MMAP
    assert service.handle_plan(view.id)["fits"] is True
    assert service.handle(view.id).state is LoadState.READY
    assert service.snapshot().resident_models == 1


def test_a_release_gives_back_every_byte_and_answers_the_same_again(root: Path, start: Start) -> None:
    """released_bytes is exact, the devices are empty, and a repeated release is the same answer."""
    place = world(root)
    service = start(place)
    view = ended(service, service.submit(request()).id)
    released = service.release(view.id)

    assert (released.state, released.released_bytes) == (LoadState.RELEASED, T0_2)
    assert released.devices == {name: size for name, size in view.allocated_bytes.items() if size}
    assert allocated(place) == {}
    assert service.release(view.id) == released
    assert service.handle(view.id).state is LoadState.RELEASED
    assert service.handle(view.id).progress == 1.0


def test_a_plan_allocates_nothing_and_leaves_no_handle(root: Path, start: Start) -> None:
    """Planning is a question."""
    place = world(root)
    service = start(place)
    answer = service.plan(request())

    assert answer["fits"] is True
    assert service.handles() == ([], 0)
    assert allocated(place) == {}


def test_a_plan_that_does_not_fit_is_answered_and_its_load_fails_with_the_numbers(root: Path, start: Start) -> None:
    """The plan says fits: false, the load ends as insufficient_memory, and nothing was allocated."""
    place = world(root, simulated=["tiny:1000"], hosts=0)
    service = start(place)

    assert service.plan(request())["fits"] is False
    view = ended(service, service.submit(request()).id)
    assert view.failure is not None
    assert view.failure.kind is CapacityError
    assert view.failure.stage is LoadState.ALLOCATING
    assert view.failure.facts["devices"] == [{"device": "tiny", "needed_bytes": T0_2 - 8192, "free_bytes": 1000}]
    assert [entry.state for entry in view.history][-1] is LoadState.FAILED
    assert service.handle_plan(view.id)["fits"] is False


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"tensor_split": (-1.0,)}, RequestError, "bad_request"),
        ({"devices": ("gpu0",)}, RequestError, "bad_request"),
        ({"model": "missing.gguf"}, NotFoundError, "model_not_found"),
        ({"model": "../outside.gguf"}, NotFoundError, "model_not_found"),
        ({"model": "fifo.gguf"}, FileError, "not_regular_file"),
        ({"split_mode": SplitMode.ROW}, PlanError, "unsupported_split"),
        (
            {"devices": (DeclaredDevice(name="far", kind="opencl", memory_bytes=MIB),)},
            PlanError,
            "device_not_loadable",
        ),
    ],
)
def test_what_can_be_known_at_once_is_refused_at_once(
    root: Path, start: Start, change: dict[str, Any], kind: type[GgufdError], code: str
) -> None:
    """A bad request, a path that leads nowhere, a split no device can do: no handle is made for them."""
    os.mkfifo(root / "fifo.gguf")
    service = start(world(root))
    with pytest.raises(kind) as caught:
        service.submit(request(**change))

    assert caught.value.code == code
    assert service.handles() == ([], 0)


def test_a_bad_file_is_the_loads_own_failure(root: Path, start: Start) -> None:
    """Accepted, then failed while reading, with the code of the fact; the next good load works."""
    (root / "bad.gguf").write_bytes(b"GGUX" + bytes(64))
    service = start(world(root))
    view = ended(service, service.submit(request(model="bad.gguf")).id)

    assert view.state is LoadState.FAILED
    assert view.failure is not None
    assert (view.failure.code, view.failure.stage) == ("bad_magic", LoadState.READING)
    assert view.stages[-1].stage is LoadState.READING
    with pytest.raises(NotFoundError):
        service.handle_plan(view.id)
    assert ended(service, service.submit(request()).id).state is LoadState.READY


def test_a_full_queue_refuses_and_says_when_to_come_back(root: Path, start: Start) -> None:
    """One runs, one waits, the third is told to retry; once there is room it is taken."""
    device = held()
    service = start(world(root, extra={"held": device}), limits=ServiceLimits(load_workers=1, queue_limit=1))
    blocked(service, device)
    second = service.submit(request())
    with pytest.raises(BusyError) as caught:
        service.submit(request())

    assert caught.value.code == "queue_full"
    assert isinstance(caught.value.facts["retry_after_seconds"], float)
    device.gate.set()
    ended(service, second.id)
    assert ended(service, service.submit(request()).id).state is LoadState.READY


def test_the_same_key_with_the_same_wish_is_the_same_handle(root: Path, start: Start) -> None:
    """A client that asks again because it heard nothing gets what it already has, even if the file is gone."""
    service = start(world(root))
    first = service.submit(request(), idempotency_key="k")
    ended(service, first.id)
    (root / "m.gguf").unlink()

    assert service.submit(request(), idempotency_key="k").id == first.id
    assert service.handles()[1] == 1


def test_the_same_key_with_another_wish_is_a_conflict(root: Path, start: Start) -> None:
    """The key stands for the first request alone."""
    service = start(world(root))
    service.submit(request(), idempotency_key="k")
    with pytest.raises(ConflictError) as caught:
        service.submit(request(n_gpu_layers=0), idempotency_key="k")

    assert caught.value.code == "idempotency_conflict"


def test_many_clients_with_one_key_get_one_load(root: Path, start: Start) -> None:
    """Twenty at the same moment: one handle, one load."""
    service = start(world(root))
    barrier = threading.Barrier(20)
    found: list[str] = []

    def ask() -> None:
        barrier.wait(10)
        found.append(service.submit(request(), idempotency_key="k").id)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(found) == 20
    assert len(set(found)) == 1


def test_a_plan_is_not_there_until_it_is_made(root: Path, start: Start) -> None:
    """While the load is queued, its plan is still to come."""
    device = held()
    service = start(world(root, extra={"held": device}), limits=ServiceLimits(load_workers=1))
    blocked(service, device)
    waiting = service.submit(request())
    with pytest.raises(BusyError) as caught:
        service.handle_plan(waiting.id)

    assert caught.value.code == "still_loading"
    device.gate.set()


@pytest.mark.parametrize("ask", ["handle", "handle_plan", "release"])
def test_an_unknown_handle_is_a_typed_refusal(root: Path, start: Start, ask: str) -> None:
    """Every question about a handle that is not there has the same answer."""
    with pytest.raises(NotFoundError) as caught:
        getattr(start(world(root)), ask)("h-0")

    assert caught.value.code == "handle_not_found"


def test_a_snapshot_tells_the_whole_state(root: Path, start: Start) -> None:
    """States, stages, queue, residents, planned bytes and progress at one moment."""
    device = held()
    service = start(
        world(root, extra={"held": device}, hosts=1), limits=ServiceLimits(load_workers=2), wall=lambda: 1234.0
    )
    resident = ended(service, service.submit(request(devices=("host0",))).id)
    blocked(service, device)
    snapshot = service.snapshot()

    assert snapshot.handles[LoadState.READY] == 1
    assert snapshot.loads_in_progress[LoadState.ALLOCATING] == 1
    assert set(snapshot.handles) == set(LoadState)
    assert set(snapshot.loads_in_progress) == set(STAGES)
    assert snapshot.resident_models == 1
    assert snapshot.queue_length == 0
    assert snapshot.planned_bytes["host0"] == resident.planned_bytes["host0"]
    assert snapshot.planned_bytes["held"] == T0_2 - 8192
    assert {facts.name for facts in snapshot.devices} == {"host", "host0", "held"}
    assert snapshot.last_progress_at == 1234.0
    device.gate.set()


def test_readiness_follows_the_queue(root: Path, start: Start) -> None:
    """Ready at rest and while loads run; not when loads wait for one that stands still; not when closing."""
    now = [1000.0]
    device = held()
    service = start(
        world(root, extra={"held": device}),
        limits=ServiceLimits(load_workers=1, stall_seconds=60),
        wall=lambda: now[0],
    )
    assert service.ready() == (True, "ready")
    blocked(service, device)
    now[0] += 100
    assert service.ready()[0]
    waiting = service.submit(request())
    assert not service.ready()[0]
    device.gate.set()
    ended(service, waiting.id)
    assert service.ready()[0]
    service.close(20)
    assert service.ready() == (False, "shutting down")
