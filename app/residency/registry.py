"""Who holds what: every claim by id, the ended ones as far as history goes, and which key asked for which.

Not locked: the service holds its one lock around every call.
"""

from __future__ import annotations

import io
import json
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from app.errors import ConflictError, NotFoundError
from app.loading.lifecycle import LoadState
from app.residency.claim import Claim
from app.residency.ended import Ended
from app.units import KIB, MIB

_ARCHIVE_BYTES: Final = 8 * MIB
_ENDED_BYTES: Final = 16 * KIB
"""What an ended claim may take on average; most take a tenth of it, one with a failure of many facts may take more."""


class ClaimRegistry:
    """Claims in the order they came. Of those that ended, the last `history_limit` stay; with the others go their keys.

    Fewer stay where they are so large that together they would take more than 16 KiB each; the last one always does.
    """

    def __init__(self, history_limit: int) -> None:
        self._history_limit = history_limit
        self._all: dict[str, Claim | bytes] = {}  # in the order they came; the ended ones packed
        self._live: dict[str, Claim] = {}
        self._in_order_of_end: deque[str] = deque()
        self._ended_bytes = 0
        self._ended_states: Counter[LoadState] = Counter()
        self._by_key: dict[str, tuple[str, str]] = {}
        self._key_of: dict[str, str] = {}
        self._end_of: dict[str, LoadState] = {}

    def __len__(self) -> int:
        return len(self._all)

    def live(self) -> Iterator[Claim]:
        """The claims that have not ended, in the order they came."""
        return iter(self._live.values())

    def states(self) -> Counter[LoadState]:
        """How many claims are in each state, the ended ones as far as history goes."""
        return self._ended_states + Counter(claim.state for claim in self._live.values())

    def page(self, offset: int, limit: int | None) -> list[str]:
        """The ids of the claims `[offset, offset + limit)` in the order they came."""
        start = min(offset, len(self._all))
        return [*islice(self._all, start, None if limit is None else start + limit)]

    def get(self, handle_id: str) -> Claim | Ended:
        """The claim of that id. Raises NotFoundError `handle_not_found`."""
        found = self._all.get(handle_id)
        if found is None:
            raise NotFoundError("no handle of this id, or it ended too long ago", code="handle_not_found")
        return Ended.unpack(found) if isinstance(found, bytes) else found

    def add(self, claim: Claim, key: str | None, fingerprint: str = "") -> None:
        """Keep a new claim, under the client's idempotency key if it gave one, with what that key stands for."""
        self._all[claim.id] = self._live[claim.id] = claim
        if key is not None:
            self._by_key[key] = fingerprint, claim.id
            self._key_of[claim.id] = key

    def by_key(self, key: str | None, fingerprint: str) -> Claim | Ended | None:
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
        return self.get(handle_id)

    def ended(self, claim: Claim) -> None:
        """Pack a claim whose state is final; forgets the claims that ended longest ago beyond the limit."""
        packed = Ended.of(claim).pack()  # first: where memory is short, nothing has changed yet
        del self._live[claim.id]
        self._all[claim.id] = packed
        self._in_order_of_end.append(claim.id)
        self._ended_bytes += len(packed)
        self._end_of[claim.id] = claim.state
        self._ended_states[claim.state] += 1
        while len(self._in_order_of_end) > self._history_limit or (
            self._ended_bytes > self._history_limit * _ENDED_BYTES and len(self._in_order_of_end) > 1
        ):
            self._forget(self._in_order_of_end.popleft())

    def _forget(self, handle_id: str) -> None:
        packed = self._all.pop(handle_id)
        assert isinstance(packed, bytes), "what is in the order of ends has ended"
        self._ended_bytes -= len(packed)
        self._ended_states[self._end_of.pop(handle_id)] -= 1
        key = self._key_of.pop(handle_id, None)
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
