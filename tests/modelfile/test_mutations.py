"""Recorded mutations of a small model: the whole way from bytes to a model decides as the reference did."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from app.api.problems import problem
from app.architectures.understanding import understand
from app.errors import FileError
from app.modelfile.reader import read_model_file
from app.modelfile.vocabulary import duplicate_tokens
from tests.oracle import the_catalog

EQUAL_TOKENS = "two equal tokens abort the reference; a loader of weights needs no tokenizer and warns"
DISAGREEMENTS = {59: EQUAL_TOKENS, 1066: EQUAL_TOKENS, 2314: EQUAL_TOKENS}
"""Entries that are decided otherwise than by the reference, with the reason; `docs/hostile-files.md` lists them too."""


@pytest.fixture(scope="module")
def recorded(oracle_dir: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The base file and its mutations."""
    entries: list[dict[str, Any]] = []
    for path in sorted((oracle_dir / "mutations").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            entries += [json.loads(line) for line in lines]
    return (oracle_dir / "mutations" / "t0.gguf").read_bytes(), entries


def mutant(base: bytes, entry: dict[str, Any]) -> bytes:
    """The base file with one entry's edits."""
    changed = bytearray(base)
    for offset, patch in entry["edits"]:
        raw = bytes.fromhex(patch)
        changed[offset : offset + len(raw)] = raw
    return bytes(changed if entry["length"] is None else changed[: entry["length"]])


def refusal(path: Path) -> FileError | None:
    """The typed error that the way from the file to its tensors ends in, or None."""
    try:
        understand(read_model_file(path), the_catalog()).comparison.require()
    except FileError as error:
        return error
    return None


def test_each_mutation_is_judged_as_the_reference_does(
    recorded: tuple[bytes, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """What it loads is accepted, what it refuses or crashes on gets a typed error naming the file; few differ."""
    base, entries = recorded
    path = tmp_path / "m.gguf"
    differ: dict[int, str] = {}
    for index, entry in enumerate(entries):
        path.write_bytes(mutant(base, entry))
        error = refusal(path)
        if error is not None:
            assert str(path) == error.facts["file"]
            assert problem(error)["detail"].startswith(f"{path}: ")
        if (error is None) != (entry["verdict"] == "ok"):
            differ[index] = f"{entry['verdict']}, here {error.message if error else 'accepted'}"
    assert len(entries) >= 2500
    assert DISAGREEMENTS.keys() == differ.keys(), differ
    assert len(differ) <= 25


def test_what_crashes_the_reference_and_is_accepted_gets_a_warning(
    recorded: tuple[bytes, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Each accepted mutation that the reference dies of has two equal tokens, and that is said."""
    base, entries = recorded
    for index in DISAGREEMENTS:
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(mutant(base, entries[index]))
        assert "crash" == entries[index]["verdict"]
        assert len(duplicate_tokens(read_model_file(path))) == 1
