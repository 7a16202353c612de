import errno
import gc
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from app.errors import BusyError, CancelledLoadError, GgufdError, NotFoundError
from app.loading.lifecycle import LoadState
from app.loading.negotiation import LoadMode
from app.planner.plan import SplitMode
from app.residency.notices import FellBack, HeaderRejected, LoadEnded, LoadStarted, Notice, PlanEnded, Unloaded
from app.residency.registry import PlanArchive
from app.service import HandleView, ServiceLimits
from tests.builders import t0
from tests.worlds import MIB, Start, allocated, blocked, ended, held, request, services, until, world

T0_2 = 312_576
SLOW = "slow:64MiB,no-mmap_support,bandwidth=60KB"  # T0(2) takes five seconds


@pytest.fixture
def root(tmp_path: Path) -> Path:
    t0(tmp_path / "m.gguf")
    return tmp_path


start = pytest.fixture(services)


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
    first = blocked(service, device)
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
    view = blocked(service, device)

    assert service.release(view.id, wait_seconds=0.01).state is LoadState.ALLOCATING
    device.gate.set()
    assert service.release(view.id).state is LoadState.CANCELLED


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ValueError("a bug"), "internal"),
        (MemoryError(), "insufficient_memory"),
        (OSError(errno.EMFILE, "Too many open files"), "out_of_descriptors"),
    ],
)
def test_an_unforeseen_error_fails_the_load_and_not_the_worker(
    root: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
    code: str,
) -> None:
    """It becomes code internal, or what the machine is short of; the log names the load, and the next load works."""

    def explode(*_args: object) -> None:
        raise fault

    service = start(world(root), limits=ServiceLimits(load_workers=1))
    with monkeypatch.context() as patch:
        patch.setattr("app.loading.run.understand", explode)
        view = ended(service, service.submit(request()).id)
        with pytest.raises(GgufdError) as caught:
            service.plan(request())

    assert caught.value.code == code
    assert view.failure is not None
    assert (view.failure.code, view.failure.stage) == (code, LoadState.PLANNING)
    assert view.load_id in caplog.text
    assert ended(service, service.submit(request()).id).state is LoadState.READY


def test_those_who_wait_are_told_once_and_can_leave(root: Path, start: Start) -> None:
    """A callback is called when the load ends, at once if it has ended, and not at all if it was taken back."""
    device = held()
    service = start(world(root, extra={"held": device}))
    view = blocked(service, device)
    stayed: list[LoadState] = []
    left: list[LoadState] = []
    service.when_ended(view.id, lambda seen: stayed.append(seen.state))

    def leaving(seen: HandleView) -> None:
        left.append(seen.state)

    service.when_ended(view.id, leaving)
    service.forget(view.id, leaving)
    service.forget(view.id, leaving)
    service.forget("h-none", leaving)
    device.gate.set()
    ended(service, view.id)
    service.when_ended(view.id, lambda seen: stayed.append(seen.state))

    assert stayed == [LoadState.READY, LoadState.READY]
    assert left == []


def test_who_submits_is_told_of_the_end_however_short_the_history(root: Path, start: Start) -> None:
    """`on_end` gets the handle as its load left it, also where it is forgotten at once, and for a repeated key."""
    service = start(world(root), limits=ServiceLimits(history_limit=1))
    told: list[HandleView] = []
    ids: list[str] = []
    for number in range(20):
        ids.append(service.submit(request(), idempotency_key=str(number), on_end=told.append).id)
        service.release(ids[-1])
    until(lambda: len(told) == len(ids))
    assert sorted(ids) == sorted(view.id for view in told)
    assert {LoadState.READY, LoadState.CANCELLED} >= {view.state for view in told}
    assert ids[-1] == service.submit(request(), idempotency_key="19", on_end=told.append).id
    until(lambda: len(told) == len(ids) + 1)


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

    assert [view.id for view in service.handles()[0]] == [resident.id, *released[1:]]
    assert service.handle_plan(released[2])["fits"] is True


def test_closing_cancels_releases_and_refuses(root: Path, start: Start) -> None:
    """Afterwards nothing is held, no thread is left, and new work is refused."""
    place = world(root, simulated=[SLOW], hosts=1)
    service = start(place, limits=ServiceLimits(load_workers=1))
    resident = ended(service, service.submit(request(devices=("host0",))).id)
    running = service.submit(request(devices=("slow",)))
    queued = service.submit(request())
    until(lambda: service.handle(running.id).progress > 0)

    assert service.close(20)
    states = {view.id: view.state for view in service.handles()[0]}
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


def test_a_plan_that_cannot_be_kept_keeps_nobody_waiting(
    root: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no memory left for the archive, a release ends all the same, and the next load is as any."""

    def none_left(_plan: object) -> bytes:
        raise MemoryError

    service = start(world(root))
    handle_id = ended(service, service.submit(request()).id).id
    monkeypatch.setattr(PlanArchive, "pack", none_left)
    assert LoadState.RELEASED is service.release(handle_id, wait_seconds=5).state
    with pytest.raises(NotFoundError, match="no longer kept"):
        service.handle_plan(handle_id)
    assert LoadState.READY is ended(service, service.submit(request()).id).state
