from typing import Any

import pytest

from app.errors import ConflictError, NotFoundError
from app.loading.lifecycle import open_record
from app.loading.request import PlanRequest
from app.residency.claim import Claim
from app.residency.registry import ClaimRegistry, PlanArchive

REQUEST = PlanRequest(model="m.gguf")
OTHER = PlanRequest(model="n.gguf")


def claim(handle_id: str, request: PlanRequest = REQUEST) -> Claim:
    record = open_record("l-" + handle_id, created_at=0.0, at_ns=0)
    return Claim(handle_id=handle_id, model_id="m", request=request, record=record)


def test_claims_are_found_by_id_and_listed_in_order() -> None:
    """An unknown id is a typed refusal."""
    registry = ClaimRegistry(10)
    for name in "cab":
        registry.add(claim(name), None)

    assert [one.id for one in registry] == ["c", "a", "b"]
    assert registry.get("a").id == "a"
    with pytest.raises(NotFoundError) as caught:
        registry.get("x")
    assert caught.value.code == "handle_not_found"


def test_history_keeps_the_last_ended_claims_and_all_live_ones() -> None:
    """Beyond the limit those that ended longest ago go; a live claim never does."""
    registry = ClaimRegistry(2)
    for name in ("live", "a", "b", "c"):
        registry.add(claim(name), None)
    for name in "bac":
        registry.ended(registry.get(name))

    assert [one.id for one in registry] == ["live", "a", "c"]


def test_a_key_answers_its_claim_until_history_forgets_both() -> None:
    """The same wish under the same key is the same claim; once it is forgotten, the key is new again."""
    registry = ClaimRegistry(1)
    first = claim("a")
    registry.add(first, "key")

    assert registry.by_key("key", REQUEST.fingerprint()) is first
    assert registry.by_key("other", REQUEST.fingerprint()) is None
    assert registry.by_key(None, REQUEST.fingerprint()) is None
    registry.ended(first)
    assert registry.by_key("key", REQUEST.fingerprint()) is first
    registry.add(claim("b"), None)
    registry.ended(registry.get("b"))
    assert registry.by_key("key", REQUEST.fingerprint()) is None


def test_a_key_used_for_another_wish_is_refused() -> None:
    """The refusal names the handle the key belongs to."""
    registry = ClaimRegistry(1)
    registry.add(claim("a"), "key")

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
