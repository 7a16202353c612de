"""The context a client wants its model to have: what the caches are made for, checked before any file is opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from app.architectures.memory import CACHE_TYPES, MAX_SEQUENCES, MemoryRequest
from app.errors import RequestError

_INT32: Final = 2**31  # positions are 32-bit integers


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """The wire's fields, with its defaults. `n_ctx` 0: as many tokens as the model was trained on.

    `type_k` and `type_v` are spelled as ggml spells types.
    """

    n_ctx: int = 0
    n_seq_max: int = 1
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attention: bool = True
    swa_full: bool = True

    def canonical(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    def memory_request(self) -> MemoryRequest:
        """The same for the planner. The types have passed `check_context`."""
        return MemoryRequest(
            n_ctx=self.n_ctx,
            n_seq_max=self.n_seq_max,
            n_ubatch=self.n_ubatch,
            type_k=CACHE_TYPES[self.type_k],
            type_v=CACHE_TYPES[self.type_v],
            flash_attention=self.flash_attention,
            swa_full=self.swa_full,
        )


def check_context(context: ContextRequest) -> None:
    """Everything that is wrong with a context whatever the model. Raises RequestError with `field`."""
    _check_range("n_ctx", context.n_ctx, 0, _INT32 - 1)
    _check_range("n_seq_max", context.n_seq_max, 1, MAX_SEQUENCES)
    _check_range("n_ubatch", context.n_ubatch, 1, _INT32 - 1)
    for name, kind in (("type_k", context.type_k), ("type_v", context.type_v)):
        if kind not in CACHE_TYPES:
            shown = kind.encode("unicode_escape").decode()[:32]
            field = f"context.{name}"
            raise RequestError(
                f'{field}: "{shown}" is no type of a cache; these are: {", ".join(CACHE_TYPES)}', field=field
            )


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        field = f"context.{name}"
        shown = value if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        raise RequestError(f"{field}: {shown} is not within {low} and {high}", field=field)
