import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import CancelledLoadError, CapacityError, FileError
from app.loading.lifecycle import EventKind, IllegalTransition, LoadEvent, LoadState, open_record
from app.loading.negotiation import LoadMode, MappingDecision, MappingReason
from app.loading.prepared import Prepared
from app.loading.request import DeclaredDevice, PlanRequest
from app.loading.signals import Allocated, Freed, Placed, Planned
from app.residency.claim import Claim

SECOND = 10**9
STEPS = [EventKind.STARTED, EventKind.READ, EventKind.PLANNED, EventKind.NEGOTIATED, EventKind.ALLOCATED]
MAPPING = MappingDecision(
    requested=LoadMode.AUTO,
    resolved=LoadMode.MMAP,
    reasons=(MappingReason(device="a", mode=LoadMode.MMAP, reason="because"),),
)


def prepared(planned: dict[str, int]) -> Prepared:
    """As much of a prepared load as a claim looks at."""
    return cast(Prepared, SimpleNamespace(planned_bytes=planned, warnings=("odd",), mapping=MAPPING))


def claim(**changes: Any) -> Claim:
    request = PlanRequest(model="m.gguf", **changes)
    record = open_record("l", created_at=1000.0, at_ns=0)
    return Claim(handle_id="h", model_id="m", request=request, record=record)


def step(one: Claim, *kinds: EventKind, at_ns: int = 0) -> None:
    for kind in kinds:
        one.apply(LoadEvent(kind=kind, at_ns=at_ns), 1000.0)


def transferring(total: int = 1000) -> Claim:
    one = claim()
    step(one, *STEPS[:3])
    one.apply(Planned(prepared({"a": total})), 1000.0)
    step(one, *STEPS[3:])
    return one


def test_progress_counts_bytes_and_is_1_only_when_all_are_in_place() -> None:
    """A load whose last byte has just landed is not done until the transfer says so."""
    one = transferring()

    seen = [one.view(0).progress]
    for _ in range(4):
        one.apply(Placed("a", 250), 1000.0)
        seen.append(one.view(0).progress)
    assert seen[:4] == [0.0, 0.25, 0.5, 0.75]
    assert 0.75 < seen[4] < 1.0
    step(one, EventKind.MOVED)
    assert one.view(0).progress == 1.0


@given(st.lists(st.integers(0, 2000), max_size=20), st.integers(0, 3000))
def test_progress_never_falls_and_stays_in_bounds(pieces: list[int], total: int) -> None:
    """Whatever is told, even too much: monotonic, within [0, 1], and 1 only at the end."""
    one = transferring(total)
    before = one.view(0).progress
    for nbytes in pieces:
        one.apply(Placed("a", nbytes), 1000.0)
        assert before <= one.view(0).progress < 1.0
        before = one.view(0).progress
    step(one, EventKind.MOVED, EventKind.VERIFIED)
    assert one.view(0).progress == 1.0


def test_a_cancelled_loads_progress_stays_where_it_was() -> None:
    """Ending does not undo what was seen."""
    one = transferring()
    one.apply(Placed("a", 500), 1000.0)
    one.fail(CancelledLoadError("stopped"), 5, 1000.0)

    assert one.view(9).progress == 0.5
    assert one.record.state is LoadState.CANCELLED


def test_the_remaining_time_follows_the_pace_and_is_unknown_without_one() -> None:
    """Half the bytes in two seconds: two seconds left. No bytes yet, or no load any more: nobody knows."""
    one = transferring()

    assert one.view(SECOND).eta_seconds is None
    one.apply(Placed("a", 500), 1000.0)
    assert one.view(2 * SECOND).eta_seconds == 2.0
    step(one, EventKind.MOVED)
    assert one.view(3 * SECOND).eta_seconds == 0.0
    step(one, EventKind.VERIFIED)
    assert one.view(3 * SECOND).eta_seconds is None


def test_mapped_bytes_do_not_make_the_rest_look_quick() -> None:
    """What is mapped is present in no time and is no pace; nor is the first moment of copying."""
    one = transferring()
    one.apply(Placed("a", 400, copied=False), 1001.0)
    assert one.view(2 * SECOND).eta_seconds is None
    one.apply(Placed("a", 200), 1001.1)
    assert one.view(SECOND + SECOND // 4).eta_seconds is None
    assert one.view(3 * SECOND).eta_seconds == 4.0  # 200 in the two seconds after the mapping, 400 left


def test_bytes_are_shown_per_device_and_per_stage() -> None:
    """Planned, allocated, and what the present and the ended stages have handled."""
    one = claim()
    step(one, *STEPS[:3])
    one.apply(Planned(prepared({"a": 700, "b": 300})), 1000.0)
    step(one, EventKind.NEGOTIATED)
    one.apply(Allocated("a", 700), 1000.0)
    one.apply(Allocated("b", 200), 1000.0)
    one.apply(Allocated("b", 100), 1000.0)
    step(one, EventKind.ALLOCATED)
    one.apply(Placed("a", 400), 1000.0)
    view = one.view(0)

    assert view.planned_bytes == view.allocated_bytes == {"a": 700, "b": 300}
    assert {stage.stage.value: stage.nbytes for stage in view.stages}["allocating"] == 1000
    assert {stage.stage.value: stage.nbytes for stage in view.stages}["transferring"] == 400


def test_only_what_a_release_gives_back_is_released() -> None:
    """A load that failed by itself gave its memory back, but released nothing; a cancelled one did."""
    failed, cancelled = transferring(), transferring()
    cancelled.stop.set()
    for one in (failed, cancelled):
        one.apply(Allocated("a", 10), 1000.0)
        one.apply(Freed("a", 10), 1000.0)
    failed.fail(CapacityError("no room"), 0, 1000.0)
    cancelled.fail(CancelledLoadError("stopped"), 0, 1000.0)

    assert (failed.released.released_bytes, failed.released.devices) == (0, {})
    assert (cancelled.released.released_bytes, cancelled.released.devices) == (10, {"a": 10})
    assert cancelled.released.as_json() == {
        "id": "h",
        "state": "cancelled",
        "released_bytes": 10,
        "devices": {"a": 10},
    }


def test_a_failure_names_its_stage_and_holds_no_frames() -> None:
    """The error comes back with its class, code and facts, and whatever its frames held is gone."""

    class Memory:
        pass

    def cut_short() -> None:
        raise FileError("cut short", code="truncated", file="m.gguf")

    one = transferring()

    def fail() -> weakref.ref[Memory]:
        held = Memory()
        with pytest.raises(FileError) as caught:
            cut_short()
        one.fail(caught.value, 0, 1000.0)
        return weakref.ref(held)

    gone = fail()
    gc.collect()
    failure = one.view(0).failure
    assert failure is not None
    assert gone() is None

    again = failure.as_error()
    assert type(again) is FileError
    assert (again.code, again.message) == ("truncated", "cut short")
    assert again.facts == {"file": "m.gguf", "stage": "transferring"}
    assert again.__traceback__ is None
    assert failure.as_error() is not again


def test_a_refused_event_changes_nothing_in_the_claim() -> None:
    """Neither the state nor the failure: a load that is over cannot fail."""
    one = transferring()
    step(one, EventKind.MOVED, EventKind.VERIFIED)
    with pytest.raises(IllegalTransition):
        one.fail(FileError("late", code="truncated"), 0, 1000.0)

    assert one.failure is None
    assert one.record.state is LoadState.READY


def test_the_handles_json_has_the_documented_fields() -> None:
    """Names and shapes as clients see them; a path that is not text is escaped."""
    one = transferring()
    shown = one.view(2 * SECOND).as_json()

    assert list(shown) == [
        "id",
        "state",
        "load_id",
        "model_id",
        "model",
        "created_at",
        "duration_seconds",
        "stages",
        "progress",
        "eta_seconds",
        "load_mode",
        "planned_bytes",
        "allocated_bytes",
        "warnings",
        "error",
        "history",
        "lease",
    ]
    assert shown["created_at"] == "1970-01-01T00:16:40.000+00:00"
    assert shown["load_mode"] == {
        "requested": "auto",
        "resolved": "mmap",
        "reasons": [{"device": "a", "mode": "mmap", "reason": "because"}],
    }
    assert shown["history"][1] == {"event": "started", "state": "reading", "at_seconds": 0.0}
    assert sum(stage["seconds"] for stage in shown["stages"]) == shown["duration_seconds"] == 2.0
    odd = Claim(handle_id="h", model_id="m", request=PlanRequest(model="a\udcff"), record=one.record)
    assert odd.view(0).as_json()["model"] == "a\\udcff"


def test_devices_of_the_clients_own_share_one_public_name() -> None:
    """Metrics get no names that clients made up."""
    one = claim(devices=(DeclaredDevice(name="mine", kind="simulated", memory_bytes=1), "host0"))

    assert [one.public_name(name) for name in ("mine", "host0", "host")] == ["declared", "host0", "host"]


def test_a_view_does_not_follow_the_claim() -> None:
    """What an edge was given stays as it was."""
    one = transferring()
    view = one.view(0)
    one.apply(Allocated("a", 10), 1000.0)

    assert view.allocated_bytes == {"a": 0}


def test_released_devices_stand_in_the_plans_order() -> None:
    """The answer to a release does not depend on which buffer was freed first."""
    one = claim()
    step(one, *STEPS[:3])
    one.apply(Planned(prepared({"a": 700, "b": 300})), 1000.0)
    step(one, *STEPS[3:])
    one.stop.set()
    for name in ("b", "a"):
        one.apply(Allocated(name, 10), 1000.0)
        one.apply(Freed(name, 10), 1000.0)

    assert ["a", "b"] == list(one.released.devices)
