"""Patterns over names: RE2's syntax, the first that is found, however many there are."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import RequestError
from app.planner.patterns import MAX_INSTRUCTIONS, Patterns, check_patterns

PIECES = st.sampled_from(["blk", r"\.", "1", r"\d+", "ffn", ".*", "_exps", "(up|down)", "attn", "^", "$"])
PATTERNS = st.lists(st.lists(PIECES, min_size=1, max_size=4).map("".join), max_size=8)
NAMES = st.sampled_from(
    ["blk.1.ffn_up.weight", "blk.11.attn_q.weight", "output.weight", "blk.3.ffn_down_exps.bias", ""]
)


@given(PATTERNS, NAMES)
def test_the_first_found_is_the_first_of_one_by_one(patterns: list[str], name: str) -> None:
    """All at once or one by one: the first pattern that is found anywhere in the name decides."""
    expected = next((index for index, pattern in enumerate(patterns) if re.search(pattern, name)), None)
    assert expected == Patterns(patterns, "overrides").first(name)


def test_states_that_do_not_fit_are_no_wrong_answer() -> None:
    """Patterns whose common states outgrow their memory are still found, if more slowly."""
    patterns = [rf"(a|b)*c{index}(a|b){{20}}x" for index in range(40)] + ["weight"]
    name = "ab" * 300 + "weight"
    assert len(patterns) - 1 == Patterns(patterns, "overrides").first(name)
    assert Patterns(patterns, "overrides").first("ab" * 300) is None


@pytest.mark.parametrize(
    ("pattern", "position"), [("ffn(", 3), ("a)", 1), (r"\1", 0), ("[z-a]", 1), ("a{2,1}", 1), ("(?=a)", 1)]
)
def test_a_fault_is_told_with_its_place(pattern: str, position: int) -> None:
    """A pattern that is not RE2's is refused under its field, with the position of what is wrong."""
    with pytest.raises(RequestError) as refused:
        check_patterns([pattern], "overrides")
    assert "overrides[0].pattern" == refused.value.facts["field"]
    found = refused.value.facts["position"]
    assert isinstance(found, int)
    assert abs(found - position) <= 1


def test_compiling_is_bounded() -> None:
    """A pattern that is large by itself, and many that are large together, are refused at once."""
    start = time.monotonic()
    with pytest.raises(RequestError, match=r"overrides\[1\]\.pattern: pattern too large"):
        Patterns(["ffn", r"[\pL\pN]{55}"], "overrides")
    with pytest.raises(RequestError, match="too large together") as refused:
        Patterns([rf"[\pL]{{{4 + index % 3}}}{index}" for index in range(4096)], "overrides")
    assert MAX_INSTRUCTIONS == refused.value.facts["expected"]
    assert time.monotonic() - start < 2


def test_as_many_plain_patterns_as_a_request_may_have() -> None:
    """Thousands of ordinary patterns are taken, and found."""
    patterns = [rf"blk\.{index}\.ffn_(up|down|gate)_exps" for index in range(4096)]
    found = Patterns(patterns, "overrides")
    assert [7, 4095, None] == [
        found.first(name) for name in ("blk.7.ffn_up_exps.weight", "blk.4095.ffn_gate_exps.weight", "output.weight")
    ]
