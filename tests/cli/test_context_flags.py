"""The flags that ask for a context."""

import argparse
from typing import Any

import pytest

from app.api.bodies import plan_request
from app.cli.wishes import add_wish_arguments, wish_body
from app.loading.context import ContextRequest


def _body(*words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_wish_arguments(parser)
    return wish_body(parser.parse_args(words), "m.gguf")


def test_every_flag_of_the_context_arrives() -> None:
    """The flags make the context that the edge takes."""
    said = _body(
        "--n-ctx", "8192", "--n-seq-max", "2", "--n-ubatch", "256", "--type-k", "q8_0", "--type-v", "bf16",
        "--no-flash-attention", "--no-swa-full",
    )  # fmt: skip
    expected = ContextRequest(
        n_ctx=8192, n_seq_max=2, n_ubatch=256, type_k="q8_0", type_v="bf16", flash_attention=False, swa_full=False
    )
    assert expected == plan_request(said).context


@pytest.mark.parametrize("words", [("--n-ctx", "0"), ("--swa-full",), ("--type-k", "f16")])
def test_one_flag_is_enough_for_a_context(words: tuple[str, ...]) -> None:
    """Whoever says anything about the context wants one; what is not said has the wire's default."""
    assert ContextRequest() == plan_request(_body(*words)).context
