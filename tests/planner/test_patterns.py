"""Patterns over names: RE2's syntax, the first that is found, however many there are."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import RequestError
from app.planner.patterns import Patterns, check_pattern

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
        check_pattern(pattern, "overrides[0].pattern")
    assert "overrides[0].pattern" == refused.value.facts["field"]
    found = refused.value.facts["position"]
    assert isinstance(found, int)
    assert abs(found - position) <= 1


def test_patterns_too_large_together_are_refused() -> None:
    """Patterns that cannot be compiled together are the request's fault."""
    with pytest.raises(RequestError, match="too large"):
        Patterns([f"(.*a){{300}}b{index}" for index in range(300)], "overrides")
