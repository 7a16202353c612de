import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.errors import (
    BusyError,
    CancelledLoadError,
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
from app.loading.request import DeclaredDevice, PlanRequest
from app.loading.run import World
from app.planner.plan import SplitMode
from app.residency.notices import FellBack, HeaderRejected, LoadEnded, LoadStarted, Notice, PlanEnded, Unloaded
from app.service import HandleView, LoaderService, ServiceLimits
from tests.builders import t0
from tests.worlds import MIB, HeldBackend, allocated, ended, held, world

T0_2 = 312_576
SLOW = "slow:64MiB,no-mmap_support,bandwidth=60KB"  # T0(2) takes five seconds
Start = Callable[..., LoaderService]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    t0(tmp_path / "m.gguf")
    return tmp_path


@pytest.fixture
def start() -> Iterator[Start]:
    """Services that are closed at the end."""
    services: list[LoaderService] = []

    def begin(place: World, **more: Any) -> LoaderService:
        services.append(LoaderService(place, **more))
        return services[-1]

    yield begin
    for service in services:
        assert service.close(20)


def request(**changes: Any) -> PlanRequest:
    return replace(PlanRequest(model="m.gguf"), **changes)


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait for something that nobody announces."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def blocked(place: World, service: LoaderService, device: HeldBackend) -> HandleView:
    """A load that stands still in `allocating`."""
    view = service.submit(request(devices=(device.name,)))
    assert device.reached.wait(10)
    return view


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
    assert service.handles() == []
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
    assert service.handles() == []


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


def test_c52_releasing_a_loading_handle_cancels_it_within_two_seconds(root: Path, start: Start) -> None:
    """A slow transfer gives up, its waiting client is told, everything is freed, and the answer stays the same."""
    place = world(root, simulated=[SLOW], hosts=0)
    service = start(place)
    view = service.submit(request())
    until(lambda: service.handle(view.id).progress > 0)
    told: list[HandleView] = []
    service.when_ended(view.id, told.append)
    held_bytes = sum(service.handle(view.id).allocated_bytes.values())
    started = time.monotonic()
    released = service.release(view.id)

    assert time.monotonic() - started < 2
    assert released.state is LoadState.CANCELLED
    assert released.released_bytes == held_bytes == T0_2
    assert allocated(place) == {}
    assert service.release(view.id) == released
    until(lambda: told)
    assert told[0].failure is not None
    assert told[0].failure.kind is CancelledLoadError
    assert ended(service, service.submit(request(devices=("host",))).id).state is LoadState.READY


def test_releasing_a_queued_load_takes_effect_at_once(root: Path, start: Start) -> None:
    """It never begins, whatever the load before it is doing."""
    device = held()
    service = start(world(root, extra={"held": device}), limits=ServiceLimits(load_workers=1))
    first = blocked(world(root), service, device)
    second = service.submit(request())
    released = service.release(second.id)

    assert (released.state, released.released_bytes) == (LoadState.CANCELLED, 0)
    assert [entry.state for entry in service.handle(second.id).history] == [LoadState.QUEUED, LoadState.CANCELLED]
    assert service.snapshot().queue_length == 0
    device.gate.set()
    assert ended(service, first.id).state is LoadState.READY


def test_a_release_that_does_not_end_in_time_answers_with_the_state_so_far(root: Path, start: Start) -> None:
    """The client is not kept for ever by a device that does not answer; later the answer is final."""
    device = held()
    service = start(world(root, extra={"held": device}))
    view = blocked(world(root), service, device)

    assert service.release(view.id, wait_seconds=0.01).state is LoadState.ALLOCATING
    device.gate.set()
    assert service.release(view.id).state is LoadState.CANCELLED


def test_a_full_queue_refuses_and_says_when_to_come_back(root: Path, start: Start) -> None:
    """One runs, one waits, the third is told to retry; once there is room it is taken."""
    device = held()
    service = start(world(root, extra={"held": device}), limits=ServiceLimits(load_workers=1, queue_limit=1))
    blocked(world(root), service, device)
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
    assert len(service.handles()) == 1


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
    blocked(world(root), service, device)
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


@pytest.mark.parametrize("fault", [ValueError("a bug"), MemoryError()])
def test_an_unforeseen_error_fails_the_load_and_not_the_worker(
    root: Path, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    """It becomes code internal, the log names the load, and the next load works."""

    def explode(*_args: object) -> None:
        raise fault

    service = start(world(root), limits=ServiceLimits(load_workers=1))
    with monkeypatch.context() as patch:
        patch.setattr("app.loading.run.understand", explode)
        view = ended(service, service.submit(request()).id)
        with pytest.raises(GgufdError) as caught:
            service.plan(request())

    assert caught.value.code == "internal"
    assert view.failure is not None
    assert (view.failure.code, view.failure.stage) == ("internal", LoadState.PLANNING)
    assert view.load_id in caplog.text
    assert ended(service, service.submit(request()).id).state is LoadState.READY


def test_those_who_wait_are_told_once_and_can_leave(root: Path, start: Start) -> None:
    """A callback is called when the load ends, at once if it has ended, and not at all if it was taken back."""
    device = held()
    service = start(world(root, extra={"held": device}))
    view = blocked(world(root), service, device)
    stayed: list[LoadState] = []
    left: list[LoadState] = []
    service.when_ended(view.id, lambda seen: stayed.append(seen.state))
    leave = service.when_ended(view.id, lambda seen: left.append(seen.state))
    leave()
    leave()
    device.gate.set()
    ended(service, view.id)
    service.when_ended(view.id, lambda seen: stayed.append(seen.state))

    assert stayed == [LoadState.READY, LoadState.READY]
    assert left == []


def test_observers_are_told_what_happened_and_cannot_do_harm(
    root: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Every notice reaches every observer in order; one that fails is logged and changes nothing."""
    notices: list[Notice] = []

    def broken(_notice: Notice) -> None:
        raise RuntimeError("observer fault")

    service = start(world(root, simulated=["a:4MiB,refuse_import"], hosts=0), observers=[broken, notices.append])
    (root / "bad.gguf").write_bytes(b"GGUX" + bytes(64))
    view = ended(service, service.submit(request()).id)
    service.release(view.id)
    ended(service, service.submit(request(model="bad.gguf")).id)
    service.plan(request())
    until(lambda: any(isinstance(notice, Unloaded) for notice in notices))

    kinds = [type(notice) for notice in notices]
    assert {LoadStarted, FellBack, LoadEnded, Unloaded, HeaderRejected, PlanEnded} <= set(kinds)
    assert kinds.count(LoadEnded) == 2
    assert "observer fault" in caplog.text


def test_each_ended_load_leaves_one_line_in_the_log(root: Path, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Load, handle, model, outcome and stages, findable from a slow bucket."""
    caplog.set_level(logging.INFO, logger="ggufd.load")
    service = start(world(root))
    view = ended(service, service.submit(request()).id)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("load ended")]

    assert len(lines) == 1
    for part in (view.id, view.load_id, "m.gguf", "outcome=ready", "transferring="):
        assert part in lines[0]


def test_history_keeps_as_many_ended_handles_as_it_is_told(root: Path, start: Start) -> None:
    """The oldest ended handle goes; a resident one stays whatever its age."""
    service = start(world(root), limits=ServiceLimits(history_limit=2))
    resident = ended(service, service.submit(request()).id)
    released = []
    for _ in range(3):
        view = ended(service, service.submit(request()).id)
        service.release(view.id)
        released.append(view.id)

    assert [view.id for view in service.handles()] == [resident.id, *released[1:]]
    assert service.handle_plan(released[2])["fits"] is True


def test_a_snapshot_tells_the_whole_state(root: Path, start: Start) -> None:
    """States, stages, queue, residents, planned bytes and progress at one moment."""
    device = held()
    service = start(
        world(root, extra={"held": device}, hosts=1), limits=ServiceLimits(load_workers=2), wall=lambda: 1234.0
    )
    resident = ended(service, service.submit(request(devices=("host0",))).id)
    blocked(world(root), service, device)
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
    blocked(world(root), service, device)
    now[0] += 100
    assert service.ready()[0]
    waiting = service.submit(request())
    assert not service.ready()[0]
    device.gate.set()
    ended(service, waiting.id)
    assert service.ready()[0]
    service.close(20)
    assert service.ready() == (False, "shutting down")


def test_closing_cancels_releases_and_refuses(root: Path, start: Start) -> None:
    """Afterwards nothing is held, no thread is left, and new work is refused."""
    place = world(root, simulated=[SLOW], hosts=1)
    service = start(place, limits=ServiceLimits(load_workers=1))
    resident = ended(service, service.submit(request(devices=("host0",))).id)
    running = service.submit(request(devices=("slow",)))
    queued = service.submit(request())
    until(lambda: service.handle(running.id).progress > 0)

    assert service.close(20)
    states = {view.id: view.state for view in service.handles()}
    assert states == {
        resident.id: LoadState.RELEASED,
        running.id: LoadState.CANCELLED,
        queued.id: LoadState.CANCELLED,
    }
    assert allocated(place) == {}
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ggufd")]
    with pytest.raises(BusyError) as caught:
        service.submit(request())
    assert caught.value.code == "shutting_down"


def test_c52_loads_and_releases_in_any_order_end_with_nothing_held(root: Path, start: Start) -> None:
    """Several clients load, wait or don't, and release as they like; at the end every device is empty."""
    t0(root / "n.gguf", 1)
    place = world(root)
    service = start(place, limits=ServiceLimits(load_workers=2, queue_limit=100))

    def client(seed: int) -> None:
        for turn in range(12):
            wish = request(
                model=("m.gguf", "n.gguf")[(seed + turn) % 2],
                split_mode=(SplitMode.LAYER, SplitMode.TENSOR)[turn % 2],
                load_mode=(LoadMode.NONE, LoadMode.AUTO)[seed % 2],
            )
            view = service.submit(wish)
            if (seed * 7 + turn) % 3:
                ended(service, view.id)
            released = service.release(view.id)
            assert released.state in (LoadState.RELEASED, LoadState.CANCELLED)
            assert service.release(view.id) == released

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert allocated(place) == {}
    snapshot = service.snapshot()
    assert snapshot.resident_models == 0
    assert sum(snapshot.handles[state] for state in (LoadState.RELEASED, LoadState.CANCELLED)) == 48


def resources() -> tuple[int, int, int]:
    """Descriptors, mappings of files and shared memory, threads."""
    with open("/proc/self/maps") as maps:
        mapped = sum(1 for line in maps if ".gguf" in line or "memfd:" in line)
    return len(os.listdir("/proc/self/fd")), mapped, threading.active_count()


def rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("cycles", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_load_and_release_leave_nothing_behind(root: Path, start: Start, cycles: int) -> None:
    """After the first five cycles descriptors, mappings and threads stay as they were, and RSS within 16 MiB."""
    t0(root / "big.gguf", 40)
    service = start(world(root))
    before, rss = (0, 0, 0), 0
    for cycle in range(cycles + 5):
        if cycle == 5:
            gc.collect()
            before, rss = resources(), rss_bytes()
        mode = (LoadMode.NONE, LoadMode.AUTO)[cycle % 2]
        view = ended(service, service.submit(request(model="big.gguf", split_mode=SplitMode.TENSOR, load_mode=mode)).id)
        assert view.state is LoadState.READY
        service.release(view.id)

    assert resources() == before
    assert rss_bytes() - rss < 16 * MIB
