import threading

import pytest

from app.residency.crew import Crew


def test_items_are_worked_on_in_the_order_they_came() -> None:
    """One thread, first come first served; closing waits for what was offered."""
    done: list[int] = []
    crew: Crew[int] = Crew("t", 1, 10, done.append)
    for item in range(5):
        assert crew.offer(item)
    crew.close()

    assert crew.join(5)
    assert done == [0, 1, 2, 3, 4]


def test_no_more_wait_than_the_limit_says() -> None:
    """One works, two wait, the next is refused; an idle thread's place is no waiting place."""
    gate, started = threading.Event(), threading.Event()

    def work(_item: int) -> None:
        started.set()
        gate.wait(5)

    crew: Crew[int] = Crew("t", 1, 2, work)
    assert crew.offer(0)
    assert started.wait(5)

    assert [crew.offer(item) for item in (1, 2, 3)] == [True, True, False]
    assert len(crew) == 2
    gate.set()
    crew.close()
    assert crew.join(5)


def test_a_queue_of_no_places_still_takes_what_an_idle_thread_can_do() -> None:
    """A limit of 0 means that nothing waits, not that nothing works."""
    done: list[int] = []
    crew: Crew[int] = Crew("t", 1, 0, done.append)

    assert crew.offer(1)
    crew.close()
    assert crew.join(5)
    assert done == [1]


def test_what_waits_can_be_withdrawn_and_what_works_cannot() -> None:
    """Withdrawing tells whether the item was still waiting."""
    gate, started = threading.Event(), threading.Event()
    done: list[int] = []

    def work(item: int) -> None:
        started.set()
        gate.wait(5)
        done.append(item)

    crew: Crew[int] = Crew("t", 1, 2, work)
    crew.offer(0)
    assert started.wait(5)
    crew.offer(1)

    assert crew.withdraw(1)
    assert not crew.withdraw(0)
    gate.set()
    crew.close()
    assert crew.join(5)
    assert done == [0]


def test_a_closed_crew_takes_nothing() -> None:
    """After closing, an offer is refused."""
    crew: Crew[int] = Crew("t", 2, 2, lambda _item: None)
    crew.close()

    assert not crew.offer(1)
    assert crew.join(5)


def test_work_that_raises_does_not_cost_a_thread(caplog: pytest.LogCaptureFixture) -> None:
    """The fault is logged, and the next item is worked on."""
    done = threading.Event()

    def work(item: int) -> None:
        if item == 0:
            raise ValueError("a fault of ours")
        done.set()

    crew: Crew[int] = Crew("t", 1, 10, work)
    crew.offer(0)
    crew.offer(1)

    assert done.wait(5)
    assert crew.alive
    assert "a fault of ours" in caplog.text
    crew.close()
    assert crew.join(5)


def test_joining_gives_up_at_its_deadline() -> None:
    """A thread that will not end does not hold up whoever waits for it."""
    gate = threading.Event()

    def work(_item: int) -> None:
        gate.wait(20)

    crew: Crew[int] = Crew("t", 1, 1, work)
    crew.offer(1)
    crew.close()

    assert not crew.join(0.05)
    gate.set()
    assert crew.join(5)
