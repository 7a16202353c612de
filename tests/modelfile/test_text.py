import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.modelfile.text import brief, decode, shown


@given(st.binary(max_size=100).filter(lambda raw: b"\0" not in raw))
def test_any_path_can_be_shown(raw: bytes) -> None:
    """Whatever bytes a path has, it is shown as printable text that is UTF-8 and JSON."""
    text = shown(os.fsdecode(raw))
    assert text.isprintable()
    assert json.loads(json.dumps(text).encode("utf-8")) == text


@pytest.mark.parametrize(
    ("raw", "text"), [(b"plain", "plain"), ("grüße".encode(), "grüße"), (b"a\xffb", "a\\xffb"), (b"", "")]
)
def test_strings_are_decoded_or_escaped(raw: bytes, text: str) -> None:
    """UTF-8 is text; anything else keeps its ASCII and shows its other bytes."""
    assert decode(raw) == text


@given(st.binary(max_size=200))
def test_any_string_is_decoded(raw: bytes) -> None:
    """Whatever the bytes, the text can be written as UTF-8."""
    assert decode(raw).encode("utf-8") is not None


def test_escaping_megabytes_is_fast() -> None:
    """Ten megabytes that are not UTF-8 are escaped within a fraction of a second."""
    start = time.perf_counter()
    assert len(decode(b"\xff" * 10_000_000)) == 40_000_000
    assert time.perf_counter() - start < 1


def test_long_and_strange_names_are_brief() -> None:
    """In a message, a name is short and printable."""
    assert brief("blk.0.attn_q.weight") == "blk.0.attn_q.weight"
    assert len(brief("x" * 60_000)) == 201
    assert brief("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
