import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ConflictError
from app.loading.lifecycle import (
    HOLDING,
    IN_PLACE,
    STAGES,
    TERMINAL,
    TRANSITIONS,
    UNDER_WAY,
    EventKind,
    IllegalTransition,
    LoadEvent,
    LoadRecord,
    LoadState,
    advance,
    open_record,
    takes,
)

STEPS = [
    EventKind.STARTED,
    EventKind.READ,
    EventKind.PLANNED,
    EventKind.NEGOTIATED,
    EventKind.ALLOCATED,
    EventKind.MOVED,
    EventKind.VERIFIED,
    EventKind.RELEASE_ASKED,
    EventKind.FREED,
]


def record_after(kinds: list[EventKind], times: list[int] | None = None) -> LoadRecord:
    record = open_record("l-1", created_at=1000.0, at_ns=0)
    for index, kind in enumerate(kinds):
        record = advance(record, LoadEvent(kind=kind, at_ns=times[index] if times else index + 1))
    return record


def test_a_load_goes_through_every_state_in_the_documented_order() -> None:
    """queued → reading → … → ready → releasing → released, one event each."""
    record = record_after(STEPS)

    assert [entry.state.value for entry in record.history] == [
        "queued",
        "reading",
        "planning",
        "negotiating",
        "allocating",
        "transferring",
        "verifying",
        "ready",
        "releasing",
        "released",
    ]


def test_every_state_before_ready_can_fail_or_be_cancelled_and_no_other() -> None:
    """Failure and cancellation belong to loads under way."""
    for state in LoadState:
        assert takes(state, EventKind.FAILED) == (state in UNDER_WAY)
        assert takes(state, EventKind.CANCELLED) == (state in UNDER_WAY)


def test_the_table_knows_every_state_and_ends_in_three() -> None:
    """Nothing lasts for ever but released, failed and cancelled."""
    assert set(TRANSITIONS) == set(LoadState)
    assert {LoadState.RELEASED, LoadState.FAILED, LoadState.CANCELLED} == TERMINAL


@pytest.mark.parametrize("state", [state for state in LoadState if state is not LoadState.QUEUED])
def test_every_state_is_reached_from_queued(state: LoadState) -> None:
    """There is no state that the table names and no story leads to."""
    reached = {LoadState.QUEUED}
    while len(grown := reached | {after for one in reached for after in TRANSITIONS[one].values()}) > len(reached):
        reached = grown

    assert state in reached


def test_an_illegal_event_is_refused_and_changes_nothing() -> None:
    """The refusal carries the story, and the record is the very same object as before, unchanged."""
    record = record_after([EventKind.STARTED])
    before = repr(record)
    kept = record

    with pytest.raises(IllegalTransition) as caught:
        record = advance(record, LoadEvent(kind=EventKind.MOVED, at_ns=5))

    assert record is kept
    assert before == repr(record)
    assert isinstance(caught.value, ConflictError)
    assert caught.value.code == "illegal_transition"
    assert caught.value.facts["story"] == ["queued", "reading"]
    assert caught.value.facts["event"] == "moved"
    assert "queued → started: reading" in caught.value.message


@given(st.sampled_from(LoadState), st.sampled_from(EventKind))
def test_advance_follows_the_table_and_nothing_else(state: LoadState, kind: EventKind) -> None:
    """Whatever the state and the event: what the table allows happens, what it lacks is refused."""
    record = LoadRecord(id="l", state=state, created_at=0.0, history=open_record("l", created_at=0, at_ns=0).history)
    event = LoadEvent(kind=kind, at_ns=1)

    if takes(state, kind):
        assert advance(record, event).state is TRANSITIONS[state][kind]
    else:
        with pytest.raises(IllegalTransition):
            advance(record, event)


@given(
    st.lists(st.integers(0, 10**12), min_size=len(STEPS), max_size=len(STEPS)),
    st.integers(0, len(STEPS)),
    st.sampled_from([None, EventKind.FAILED, EventKind.CANCELLED]),
    st.integers(0, 10**13),
)
def test_stage_times_partition_the_duration_exactly(
    times: list[int], reached: int, end: EventKind | None, now_ns: int
) -> None:
    """Wherever a load is and however its clock readings came in, its stages' nanoseconds add up to its duration."""
    record = record_after(STEPS[:reached], times)
    if end is not None and takes(record.state, end):
        record = advance(record, LoadEvent(kind=end, at_ns=times[-1]))
    stages = record.stages(now_ns)

    assert sum(stage.nanoseconds for stage in stages) == record.duration_ns(now_ns)
    assert all(stage.nanoseconds >= 0 for stage in stages)
    assert [stage.stage for stage in stages] == list(STAGES[: len(stages)])


def test_the_present_stage_counts_up_and_ended_ones_stand_still() -> None:
    """A stage under way lasts until now; afterwards its time no longer changes."""
    record = record_after([EventKind.STARTED, EventKind.READ], [10, 25])

    assert [(stage.nanoseconds, stage.ended) for stage in record.stages(100)] == [(10, True), (15, True), (75, False)]
    ended = advance(record, LoadEvent(kind=EventKind.FAILED, at_ns=40))
    assert [stage.nanoseconds for stage in ended.stages(10**9)] == [10, 15, 15]
    assert ended.duration_ns(10**9) == 40


def test_a_failed_load_knows_the_stage_it_failed_in() -> None:
    """`failed_stage` is the state before the end, and None for loads that did not fail."""
    record = record_after([EventKind.STARTED, EventKind.READ])

    assert record.failed_stage is None
    assert advance(record, LoadEvent(kind=EventKind.FAILED, at_ns=9)).failed_stage is LoadState.PLANNING


def test_bytes_belong_to_the_stage_that_the_event_ends() -> None:
    """An event that ends transferring with its bytes shows them under transferring."""
    record = record_after(STEPS[:5])
    record = advance(record, LoadEvent(kind=EventKind.MOVED, at_ns=99, nbytes=4096))

    assert {stage.stage: stage.nbytes for stage in record.stages(100)}[LoadState.TRANSFERRING] == 4096


def test_a_release_is_timed_apart_from_the_load() -> None:
    """What releasing takes is no part of the load's duration."""
    record = record_after(STEPS, [1, 2, 3, 4, 5, 6, 7, 100, 130])

    assert record.release_ns == 30
    assert record.duration_ns(1000) == 7


def test_the_sets_of_states_say_what_their_names_say() -> None:
    """Under way, holding and in place are read off the same order."""
    assert frozenset(STAGES) == UNDER_WAY
    assert {LoadState.READY, LoadState.RELEASING} == HOLDING
    assert LoadState.TRANSFERRING not in IN_PLACE
    assert LoadState.VERIFYING in IN_PLACE
