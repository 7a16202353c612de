"""The tree of errors: what a class promises, and that nothing is promised that nobody raises."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.errors import BusyError, FileError, GgufdError, MetadataError, RequestError

APP = Path(__file__).resolve().parent.parent / "app"


def _classes(base: type[GgufdError] = GgufdError) -> Iterator[type[GgufdError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _classes(kind)


def _codes() -> list[str]:
    return sorted({code for kind in _classes() for code in kind.codes})


@pytest.mark.parametrize("code", _codes())
def test_every_code_is_raised_somewhere(code: str) -> None:
    """A code that clients read about can happen: a module other than the tables raises it, or it is a general one."""
    if any(kind.general_code == code for kind in _classes()):
        return
    tables = {APP / "errors.py", APP / "api" / "problems.py"}
    uses = [path for path in APP.rglob("*.py") if path not in tables and re.search(rf'"{code}"', path.read_text())]
    assert uses


@pytest.mark.parametrize("kind", list(_classes()), ids=lambda kind: kind.__name__)
def test_a_general_code_is_one_of_the_classes_own(kind: type[GgufdError]) -> None:
    """The code of an error raised without one is a code of its class."""
    assert kind.general_code is None or kind.general_code in kind.codes


def test_an_error_keeps_its_message_code_and_facts() -> None:
    """What failed is told to people by the message, to programs by the code and the facts."""
    error = RequestError("devices: 'x' is not here", field="devices")
    assert ("devices: 'x' is not here", "bad_request", {"field": "devices"}) == (
        str(error),
        error.code,
        dict(error.facts),
    )


def test_facts_are_what_json_can_carry() -> None:
    """A file's number that is not finite is told by its name, wherever it stands among the facts."""
    error = RequestError("x", field="f", found=math.nan, inside=[{"a": [-math.inf, 1.5]}, math.inf])
    assert {"field": "f", "found": "nan", "inside": [{"a": ["-inf", 1.5]}, "inf"]} == error.facts


def test_a_class_of_many_facts_needs_to_be_told_which() -> None:
    """Errors about files, metadata and waiting have no general code: which fact failed is the point."""
    for kind in (FileError, MetadataError, BusyError):
        with pytest.raises(AssertionError, match="needs a code"):
            kind("something")
