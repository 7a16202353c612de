"""`docs/hostile-files.md` names every fact, where it is checked, and with what: held to the code and the corpus."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from app.errors import FileError, codes_of
from tests.corpus import CORPUS
from tests.corpus_models import MODELS
from tests.modelfile.test_mutations import DISAGREEMENTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "hostile-files.md").read_text()


class Row(NamedTuple):
    """One fact of the table."""

    fact: str
    code: str
    module: str
    function: str
    proofs: tuple[str, ...]


def rows() -> list[Row]:
    """The table of facts."""
    pattern = re.compile(r"^\| (.+?) \| `([a-z_]+)` \| `(app/[\w/]+\.py):(\w+)` \| (.+) \|$", re.MULTILINE)
    return [
        Row(fact, code, module, function, tuple(re.findall(r"`([^`]+)`", proofs)))
        for fact, code, module, function, proofs in pattern.findall(PAGE)
    ]


def functions(module: str) -> dict[str, str]:
    """The source of each function of a file of ours, by name; of equal names, all together."""
    text = (ROOT / module).read_text()
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = found.get(node.name, "") + (ast.get_source_segment(text, node) or "")
    return found


def test_every_line_of_the_table_is_understood() -> None:
    """No row escapes this test by being written otherwise."""
    section = PAGE.split("## The facts")[1].split("## What is odd")[0]
    assert len(rows()) == sum(line.startswith("| ") for line in section.splitlines()) - 1


def test_every_code_about_files_has_a_row() -> None:
    """The table has each code that a file can be refused with, and no other."""
    assert set(codes_of(FileError)) == {row.code for row in rows()}


def test_every_file_of_the_corpus_stands_in_the_row_of_its_code() -> None:
    """Each bad file is named once, beside its code; the table names no file that is not there."""
    named = [(name, row.code) for row in rows() for name in row.proofs if "::" not in name]
    assert sorted(named) == sorted((bad.name, bad.code) for bad in (*CORPUS, *MODELS))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.code}-{row.function}")
def test_every_row_leads_to_code_and_tests(row: Row) -> None:
    """The function exists and speaks of the code; so do the tests; every fact is proved by something."""
    body = functions(row.module)[row.function]
    assert f'"{row.code}"' in body
    assert row.proofs
    for proof in row.proofs:
        if "::" in proof:
            module, test = proof.split("::")
            assert test in functions(module)


def test_every_disagreement_is_listed_with_its_reason() -> None:
    """Where the reference decides otherwise, the page says so, and why."""
    listed = re.findall(r"^\| (\d+) \| crashes \| accepts, with a warning \| (.+) \|$", PAGE, re.MULTILINE)
    assert {str(index): reason for index, reason in DISAGREEMENTS.items()} == dict(listed)
