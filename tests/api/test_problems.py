import pytest

from app.api import problems
from app.errors import BusyError, CancelledLoadError, CapacityError, ConflictError, FileError, GgufdError, PlanError

CLASSES_AND_CODES = [(cls, code) for cls in problems.error_classes() for code in cls.codes]


@pytest.mark.parametrize(("cls", "code"), CLASSES_AND_CODES)
def test_every_code_of_every_class_has_a_title_and_an_error_status(cls: type[GgufdError], code: str) -> None:
    """Whatever error is raised on purpose, it becomes a complete problem."""
    body = problems.problem(cls("what failed", code=code))
    assert {"type", "title", "status", "code", "detail"} == body.keys()
    assert 400 <= body["status"] <= 599
    assert body["title"]


def test_no_title_is_left_of_a_code_that_is_gone() -> None:
    """The table of titles and the class tree name the same codes."""
    assert {code for _, code in CLASSES_AND_CODES} == problems.TITLES.keys()


def test_a_code_has_one_status_whatever_class_raises_it() -> None:
    """A client may rely on the code alone: two classes that share one answer with the same status."""
    statuses: dict[str, set[int]] = {}
    for cls, code in CLASSES_AND_CODES:
        statuses.setdefault(code, set()).add(problems.status_of_class(cls, code))
    assert dict.fromkeys(statuses, 1) == {code: len(found) for code, found in statuses.items()}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CapacityError("too little", devices=[]), 507),
        (BusyError("full", code="queue_full"), 503),
        (ConflictError("no", code="idempotency_conflict"), 409),
        (CancelledLoadError("gone"), 409),
        (FileError("bad", code="truncated"), 422),
        (PlanError("bad"), 422),
        (GgufdError("bad"), 500),
    ],
)
def test_the_class_gives_the_status(error: GgufdError, status: int) -> None:
    """Capacity is 507, busy 503, a bad file or plan 422, a conflict 409."""
    assert status == problems.status_of(error)


def test_facts_are_fields_of_the_problem() -> None:
    """What failed is readable by programs: each fact stands beside the standard members."""
    body = problems.problem(FileError("bad offset", code="bad_offset", tensor="a", expected=32, found=33))
    assert ("a", 32, 33) == (body["tensor"], body["expected"], body["found"])
    assert "urn:ggufd:problem:bad_offset" == body["type"]


def test_retry_after_is_whole_seconds_and_only_for_busy() -> None:
    """`Retry-After` is rounded up, at least one second, and belongs to 503 alone."""
    assert 3 == problems.retry_after_seconds(BusyError("later", code="still_loading", retry_after_seconds=2.1))
    assert 1 == problems.retry_after_seconds(BusyError("later", code="still_loading", retry_after_seconds=0))
    assert 1 == problems.retry_after_seconds(BusyError("later", code="still_loading"))
    assert problems.retry_after_seconds(FileError("never", code="truncated")) is None


def test_the_unforeseen_gives_nothing_away() -> None:
    """An exception nobody raised on purpose is a 500 with the code `internal` and no trace."""
    body = problems.unforeseen()
    assert (500, "internal") == (body["status"], body["code"])


@pytest.mark.parametrize(("cls", "code"), CLASSES_AND_CODES)
def test_a_problem_becomes_its_error_again(cls: type[GgufdError], code: str) -> None:
    """A client gets back the code, the sentence and the facts, in a class that has the code."""
    error = problems.error_from(problems.problem(cls("what failed", code=code, tensor="a"), instance="/x"))
    assert (code, "what failed", {"tensor": "a"}) == (error.code, error.message, error.facts)
    assert code in type(error).codes


def test_an_unknown_code_is_still_an_error() -> None:
    """A problem from a newer daemon, or from something else altogether, is repeated and not guessed at."""
    assert "brand_new: it failed" == problems.error_from({"code": "brand_new", "detail": "it failed"}).message
    assert isinstance(problems.error_from({}), GgufdError)
