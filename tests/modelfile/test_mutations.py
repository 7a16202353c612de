"""Recorded mutations of a small model: what the reference could not read must not be readable here either."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from app.errors import FileError
from app.modelfile.reader import read_model_file
from app.modelfile.vocabulary import check_vocabulary


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
    """The typed error that reading gives, or None."""
    try:
        check_vocabulary(read_model_file(path))
    except FileError as error:
        return error
    return None


def test_no_mutation_gives_a_raw_exception(recorded: tuple[bytes, list[dict[str, Any]]], tmp_path: Path) -> None:
    """Every mutation is read or refused with a typed error; what the reference reads is seldom refused."""
    base, entries = recorded
    refused, stricter = 0, []
    path = tmp_path / "m.gguf"
    for index, entry in enumerate(entries):
        path.write_bytes(mutant(base, entry))
        error = refusal(path)
        if error is not None:
            refused += 1
            assert error.facts["file"] == str(path)
            if entry["verdict"] == "ok":
                stricter.append((index, error.message))
    assert len(entries) >= 2500
    assert refused > len(entries) // 2
    assert len(stricter) <= 25, stricter
