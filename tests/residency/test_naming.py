"""Errors about a model's files, in the words of who asked for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import FileError, MetadataError
from app.modelfile.reader import read_model_file
from app.residency.naming import renamed
from tests.builders import t0


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("sub/m-1.gguf", ["sub/m-1.gguf", "sub/m-2.gguf"]),
        ("sub", ["sub/m-1.gguf", "sub/m-2.gguf"]),
        ("m-2.gguf", ["m-1.gguf", "m-2.gguf"]),
    ],
)
def test_parts_are_named_beside_the_part_or_in_the_folder_that_was_asked_for(
    tmp_path: Path, asked: str, names: list[str]
) -> None:
    """No part of a split model is named by its place."""
    model = read_model_file(t0(tmp_path / "m.gguf"))
    paths = [tmp_path / "m-1.gguf", tmp_path / "m-2.gguf"]
    model = replace(model, shards=tuple(replace(model.shards[0], path=path) for path in paths))
    for path, name in zip(paths, names, strict=True):
        error = FileError(f"{path}: changed", code="file_changed", file=str(path), found=3)
        told = renamed(error, asked, model)
        assert (f"{name}: changed", name, 3) == (told.message, told.facts["file"], told.facts["found"])


def test_a_model_of_one_file_is_named_as_it_was_asked_for(tmp_path: Path) -> None:
    """Whatever the client called it, its own words come back; class and code stay."""
    path = t0(tmp_path / "m.gguf")
    error = MetadataError(f"{path}: x", code="bad_value", file=str(path), key="k")
    told = renamed(error, "./a/../m.gguf", read_model_file(path))
    assert (MetadataError, "bad_value", "./a/../m.gguf: x") == (type(told), told.code, told.message)
    assert {"file": "./a/../m.gguf", "key": "k"} == told.facts
