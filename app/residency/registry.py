"""Who holds what: every claim by id, the ended ones as far as history goes, and which key asked for which.

Not locked: the service holds its one lock around every call.
"""

from __future__ import annotations

import io
import json
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final

from app.errors import ConflictError, NotFoundError
from app.residency.claim import Claim
from app.units import MIB

_ARCHIVE_BYTES: Final = 8 * MIB


class ClaimRegistry:
    """Claims in the order they came. Of those that ended, the last `history_limit` stay; with them go their keys."""

    def __init__(self, history_limit: int) -> None:
        self._history_limit = history_limit
        self._claims: dict[str, Claim] = {}
        self._ended: deque[str] = deque()
        self._by_key: dict[str, tuple[str, str]] = {}
        self._key_of: dict[str, str] = {}

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._claims.values())

    def get(self, handle_id: str) -> Claim:
        """The claim of that id. Raises NotFoundError `handle_not_found`."""
        claim = self._claims.get(handle_id)
        if claim is None:
            raise NotFoundError("no handle of this id, or it ended too long ago", code="handle_not_found")
        return claim

    def add(self, claim: Claim, key: str | None) -> None:
        """Keep a new claim, under the client's idempotency key if it gave one."""
        self._claims[claim.id] = claim
        if key is not None:
            self._by_key[key] = (claim.request.fingerprint(), claim.id)
            self._key_of[claim.id] = key

    def by_key(self, key: str | None, fingerprint: str) -> Claim | None:
        """The claim that was made with this key; None for a new key. Raises ConflictError `idempotency_conflict`."""
        if key is None or key not in self._by_key:
            return None
        known, handle_id = self._by_key[key]
        if known != fingerprint:
            raise ConflictError(
                "the idempotency key was used for another request",
                code="idempotency_conflict",
                handle_id=handle_id,
            )
        return self._claims[handle_id]

    def ended(self, claim: Claim) -> None:
        """Note that the claim's state is final; forgets the claims that ended longest ago beyond the limit."""
        self._ended.append(claim.id)
        while len(self._ended) > self._history_limit:
            forgotten = self._ended.popleft()
            del self._claims[forgotten]
            key = self._key_of.pop(forgotten, None)
            if key is not None:
                del self._by_key[key]


class PlanArchive:
    """The plans of ended loads, compressed, the newest that fit into a few megabytes. Not locked."""

    def __init__(self, max_bytes: int = _ARCHIVE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._plans: OrderedDict[str, bytes] = OrderedDict()
        self._nbytes = 0

    @staticmethod
    def pack(plan: dict[str, Any]) -> bytes:
        """A plan's JSON, compressed; takes long enough to be done outside any lock.

        Each member, and each entry of a list, is a line of its own: one call for all of a large plan would keep every
        other thread waiting.
        """
        packer = zlib.compressobj(1)
        packed = [packer.compress(json.dumps(line, separators=(",", ":")).encode() + b"\n") for line in _lines_of(plan)]
        return b"".join((*packed, packer.flush()))

    def put(self, handle_id: str, packed: bytes) -> None:
        """Keep a packed plan, letting go of the oldest ones where room is short."""
        self._plans[handle_id] = packed
        self._nbytes += len(packed)
        while self._nbytes > self._max_bytes:
            _, dropped = self._plans.popitem(last=False)
            self._nbytes -= len(dropped)

    def get(self, handle_id: str) -> bytes | None:
        """The packed plan, if it is still kept."""
        return self._plans.get(handle_id)

    @staticmethod
    def unpack(packed: bytes) -> dict[str, Any]:
        """The plan again."""
        plan: dict[str, Any] = {}
        for line in io.BytesIO(zlib.decompress(packed)):
            name, value, is_entry = json.loads(line)
            if is_entry:
                plan[name].append(value)
            else:
                plan[name] = value
        return plan


def _lines_of(plan: dict[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """The members by name, lists empty at first and then entry by entry; whether it is an entry."""
    for name, member in plan.items():
        if isinstance(member, list):
            yield name, [], False
            for entry in member:
                yield name, entry, True
        else:
            yield name, member, False
