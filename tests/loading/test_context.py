"""The context a request may ask for."""

from dataclasses import replace
from typing import Any

import pytest

from app.architectures.memory import MemoryRequest
from app.errors import RequestError
from app.ggml import BY_NAME
from app.loading.context import ContextRequest, check_context


def test_the_wires_defaults_are_the_planners() -> None:
    """A context without fields means the same on the wire and in the planner."""
    check_context(ContextRequest())
    assert MemoryRequest() == ContextRequest().memory_request()


def test_every_field_reaches_the_planner() -> None:
    """What a client writes is what the planner is asked for."""
    wish = ContextRequest(
        n_ctx=5, n_seq_max=2, n_ubatch=3, type_k="q8_0", type_v="bf16", flash_attention=False, swa_full=False
    )
    check_context(wish)
    assert wish.memory_request() == MemoryRequest(
        n_ctx=5,
        n_seq_max=2,
        n_ubatch=3,
        type_k=BY_NAME["q8_0"],
        type_v=BY_NAME["bf16"],
        flash_attention=False,
        swa_full=False,
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_ctx": -1}, "context.n_ctx"),
        ({"n_ctx": 2**31}, "context.n_ctx"),
        ({"n_ctx": 10**5000}, "context.n_ctx"),
        ({"n_seq_max": 0}, "context.n_seq_max"),
        ({"n_seq_max": 257}, "context.n_seq_max"),
        ({"n_ubatch": 0}, "context.n_ubatch"),
        ({"type_k": "F16"}, "context.type_k"),
        ({"type_k": "i32"}, "context.type_k"),
        ({"type_v": "q8_K"}, "context.type_v"),
        ({"type_v": "\ud800" * 900}, "context.type_v"),
    ],
)
def test_what_no_model_can_have_is_refused(change: dict[str, Any], field: str) -> None:
    """Lengths out of range and types that no cache has are refused, naming the field."""
    with pytest.raises(RequestError) as refused:
        check_context(replace(ContextRequest(), **change))
    assert field == refused.value.facts["field"]
    assert len(refused.value.message) < 400
