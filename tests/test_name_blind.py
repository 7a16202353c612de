"""The planner must not know any architecture's name."""

import re
from pathlib import Path

import pytest

from app.architectures.registry import load_catalog

PLANNER = sorted((Path(__file__).resolve().parent.parent / "app" / "planner").rglob("*.py"))


def names_in(text: str, names: set[str]) -> set[str]:
    """Which of `names` stand in `text` with no letter or digit on either side, in any case."""
    lowered = text.lower()
    return {name for name in names if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", lowered)}


def every_spelling() -> set[str]:
    """The catalog's names, as the architecture spells them and as their files do."""
    names = {architecture.name for architecture in load_catalog()}
    return {name.lower() for name in names} | {re.sub(r"[-.]", "_", name.lower()) for name in names}


@pytest.mark.parametrize("path", PLANNER, ids=lambda path: path.name)
def test_no_architecture_is_named_in_the_planner(path: Path) -> None:
    """The stages speak of roles, layers, axes and devices; an exception is data in the architecture's own file."""
    assert set() == names_in(path.read_text(), every_spelling())


def test_a_name_would_be_found() -> None:
    """The search finds a name in code, in a comment and in a longer expression, and no mere part of a word."""
    names = {"falconet", "gpt-oss", "gpt_oss"}
    assert {"falconet"} == names_in('if arch == "Falconet":', names)
    assert {"gpt-oss"} == names_in("# as gpt-oss does", names)
    assert {"gpt_oss"} == names_in("from catalog.gpt_oss import X", names)
    assert {"falconet"} == names_in("is_falconet(hparams)", names)
    assert set() == names_in("falconetish gptoss", names)


def test_the_search_looked_at_something() -> None:
    """There are architectures to look for and stages to look in."""
    assert every_spelling()
    assert len(PLANNER) > 3
