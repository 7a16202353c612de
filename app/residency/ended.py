"""What stays of a handle that has ended: its last view, what its release gave back, and the request it was for.

Thousands of them are kept, so each is one piece of packed bytes (1 to 3 KB) and not a graph of hundreds of small
objects, which would spread over the interpreter's memory and hold on to it.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from app.loading.lifecycle import LoadState
from app.residency.claim import Claim
from app.residency.handles import HandleView, Released


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A claim that holds nothing any more."""

    last: HandleView
    released: Released

    @property
    def id(self) -> str:
        """The handle's id."""
        return self.last.id

    @property
    def state(self) -> LoadState:
        """One of the terminal ones."""
        return self.last.state

    def view(self, _now_ns: int) -> HandleView:
        """The handle, the same at any time."""
        return self.last

    @classmethod
    def of(cls, claim: Claim) -> Ended:
        """What stays of `claim`, whose state is final."""
        return cls(last=claim.view(claim.record.changed_ns), released=claim.released)

    def pack(self) -> bytes:
        """For `unpack`."""
        return pickle.dumps((self.last, self.released), pickle.HIGHEST_PROTOCOL)

    @classmethod
    def unpack(cls, packed: bytes) -> Ended:
        """What `pack` packed."""
        last, released = pickle.loads(packed)  # noqa: S301 -- packed in this very process
        return cls(last=last, released=released)
