import gc
from typing import Any

import pytest

from app.errors import ConflictError, FileError, NotFoundError
from app.loading.lifecycle import EventKind, LoadEvent, LoadState, open_record
from app.loading.request import PlanRequest
from app.residency.claim import Claim
from app.residency.ended import Ended
from app.residency.handles import Failure
from app.residency.registry import ClaimRegistry, PlanArchive

REQUEST = PlanRequest(model="m.gguf")
OTHER = PlanRequest(model="n.gguf")


def claim(handle_id: str, request: PlanRequest = REQUEST) -> Claim:
    record = open_record("l-" + handle_id, created_at=0.0, at_ns=0)
    return Claim(handle_id=handle_id, model_id="m", request=request, record=record)


def end(registry: ClaimRegistry, handle_id: str, kind: EventKind = EventKind.CANCELLED) -> None:
    found = registry.get(handle_id)
    assert isinstance(found, Claim)
    found.apply(LoadEvent(kind=kind, at_ns=1), 0.0)
    registry.ended(found)


def test_claims_are_found_by_id_and_listed_in_order() -> None:
    """An unknown id is a typed refusal; a page is of the claims in the order they came, ended or not."""
    registry = ClaimRegistry(10)
    for name in "cab":
        registry.add(claim(name), None)
    end(registry, "a")

    assert ["c", "a", "b"] == registry.page(0, None)
    assert ["a"] == registry.page(1, 1)
    assert ["c", "b"] == [one.id for one in registry.live()]
    assert 3 == len(registry)
    assert registry.get("a").id == "a"
    with pytest.raises(NotFoundError) as caught:
        registry.get("x")
    assert caught.value.code == "handle_not_found"


def test_history_keeps_the_last_ended_claims_and_all_live_ones() -> None:
    """Beyond the limit those that ended longest ago go, and are counted no more; a live claim never does."""
    registry = ClaimRegistry(2)
    for name in ("live", "a", "b", "c"):
        registry.add(claim(name), None)
    end(registry, "b", EventKind.FAILED)
    assert {LoadState.QUEUED: 3, LoadState.FAILED: 1} == registry.states()
    end(registry, "a")
    end(registry, "c")

    assert ["live", "a", "c"] == registry.page(0, None)
    assert {LoadState.QUEUED: 1, LoadState.CANCELLED: 2} == registry.states()


def test_an_ended_claim_shows_what_it_showed() -> None:
    """Packed or not, the view and what its release gave back are the same."""
    registry = ClaimRegistry(1)
    one = claim("a")
    registry.add(one, "key")
    one.fail(FileError("it is \udc80 no GGUF", code="bad_magic", offset=3, near=["a", {"b": None}]), 7, 1.0)
    view, released = one.view(99), one.released
    registry.ended(one)
    kept = registry.get("a")

    assert isinstance(kept, Ended)
    assert kept.view(10**9) == view
    assert kept.released == released
    assert kept.state is LoadState.FAILED
    assert view.failure is not None
    assert kept.last.failure == view.failure
    assert isinstance(kept.last.failure, Failure)
    assert isinstance(kept.last.failure.as_error(), FileError)


def test_an_ended_claim_is_one_piece_of_memory() -> None:
    """A long history must not spread over the interpreter's memory: a few packed kilobytes each, no object graph."""
    registry = ClaimRegistry(1000)
    registry.add(claim("first"), None)
    end(registry, "first")
    gc.collect()
    before = len(gc.get_objects())
    for number in range(500):
        registry.add(claim(str(number)), None)
        end(registry, str(number))
    gc.collect()

    assert len(gc.get_objects()) - before < 50
    assert len(Ended.of(claim("x")).pack()) < 2048


def test_a_key_answers_its_claim_until_history_forgets_both() -> None:
    """The same wish under the same key is the same claim; once it is forgotten, the key is new again."""
    registry = ClaimRegistry(1)
    first = claim("a")
    registry.add(first, "key", REQUEST.fingerprint())

    assert registry.by_key("key", REQUEST.fingerprint()) is first
    assert registry.by_key("other", REQUEST.fingerprint()) is None
    assert registry.by_key(None, REQUEST.fingerprint()) is None
    end(registry, "a")
    again = registry.by_key("key", REQUEST.fingerprint())
    assert again is not None
    assert again.id == "a"
    with pytest.raises(ConflictError):
        registry.by_key("key", OTHER.fingerprint())
    registry.add(claim("b"), None)
    end(registry, "b")
    assert registry.by_key("key", REQUEST.fingerprint()) is None


def test_a_key_used_for_another_wish_is_refused() -> None:
    """The refusal names the handle the key belongs to."""
    registry = ClaimRegistry(1)
    registry.add(claim("a"), "key", REQUEST.fingerprint())

    with pytest.raises(ConflictError) as caught:
        registry.by_key("key", OTHER.fingerprint())
    assert caught.value.code == "idempotency_conflict"
    assert caught.value.facts["handle_id"] == "a"


def test_archived_plans_come_back_as_they_were_until_room_is_short() -> None:
    """The newest plans stay, whatever else is dropped; the bytes held never exceed the bound."""
    plan: dict[str, Any] = {
        "plan_id": "p",
        "tensors": [{"name": f"t\u2028\n{n}", "bytes": n} for n in range(100)],
        "caches": [],
        "model": {"n_head": [1, 2]},
    }
    packed = PlanArchive.pack(plan)
    archive = PlanArchive(max_bytes=2 * len(packed) + 10)
    for name in "abc":
        archive.put(name, packed)

    assert archive.get("a") is None
    kept = archive.get("c")
    assert kept is not None
    assert PlanArchive.unpack(kept) == plan


def test_a_plan_larger_than_the_archive_is_not_kept() -> None:
    """One giant does not break the bound."""
    archive = PlanArchive(max_bytes=1)
    archive.put("a", b"xx")

    assert archive.get("a") is None


def test_large_ended_claims_are_fewer() -> None:
    """History is bounded in bytes, too: claims with huge failures push out the oldest, never the newest."""
    registry = ClaimRegistry(10)
    for number in range(8):
        one = claim(str(number))
        registry.add(one, f"key{number}", REQUEST.fingerprint())
        one.fail(FileError("many facts", code="bad_magic", found=[f"{one:0100}" for one in range(1000)]), 7, 1.0)
        registry.ended(one)
    assert ["7"] == registry.page(0, None)
    assert {LoadState.FAILED: 1} == registry.states()
    assert registry.by_key("key6", REQUEST.fingerprint()) is None
    registry.add(claim("small"), None)
    end(registry, "small")
    assert ["7", "small"] == registry.page(0, None)


@pytest.mark.parametrize("offset", [1, 2**63 - 1, 2**80])
def test_a_page_beyond_the_end_is_empty(offset: int) -> None:
    """However far beyond."""
    registry = ClaimRegistry(10)
    registry.add(claim("a"), None)
    assert [] == registry.page(offset, 100)
