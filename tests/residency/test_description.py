"""What a file is, as a value."""

from pathlib import Path

import pytest

from app.errors import FileError, NotFoundError
from app.modelfile.limits import ReadLimits
from app.modelfile.types import ValueType
from app.modelfile.writer import MetadataValue, Typed
from app.residency.description import Description, describe
from tests.builders import F32, t0, vocabulary
from tests.oracle import the_catalog


def look(path: Path, token_bytes: int | None = None) -> Description:
    """The description of the file at a path."""
    return describe(path, the_catalog(), ReadLimits(), token_bytes=token_bytes)


def test_a_good_model_has_no_problem(tmp_path: Path) -> None:
    """Everything is known of it, nothing disagrees."""
    found = look(t0(tmp_path / "m.gguf"))
    assert (None, (), "llama") == (found.problem, found.keys, found.architecture)
    assert found.comparison is not None
    details = found.details()
    assert ([], [], [], []) == tuple(details[name] for name in ("missing", "wrong", "extra", "unused"))


def test_the_problem_is_the_first_and_keys_are_all(tmp_path: Path) -> None:
    """A load stumbles over one key; all that are missing or wrong are told, those of each layer too."""
    keys: dict[str, MetadataValue | None] = {
        "llama.context_length": None,
        "llama.embedding_length": "64",
        "llama.attention.head_count": 4.0,
        "tokenizer.ggml.model": None,
    }
    found = look(t0(tmp_path / "m.gguf", set_keys=keys))
    assert found.problem is not None
    assert {"llama.context_length", "llama.embedding_length", "llama.attention.head_count", "tokenizer.ggml.model"} == {
        error.facts["key"] for error in found.keys
    }
    assert found.problem.facts["key"] in {error.facts["key"] for error in found.keys}


def test_without_a_count_of_blocks_the_other_keys_are_still_told(tmp_path: Path) -> None:
    """The count of blocks, on which per-layer keys depend, may itself be wrong."""
    found = look(t0(tmp_path / "m.gguf", set_keys={"llama.block_count": 0, "llama.context_length": None}))
    assert ["llama.block_count", "llama.context_length"] == [error.facts["key"] for error in found.keys]


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    """Of a file without an architecture no tensor can be called missing or extra."""
    details = look(t0(tmp_path / "m.gguf", set_keys={"general.architecture": None})).details()
    assert {None} == {details[name] for name in ("model", "missing", "wrong", "extra", "unused", "architecture")}
    assert [] == details["keys"]


def test_quantisation_is_weighed_by_bytes(tmp_path: Path) -> None:
    """The main type is the one that most bytes have, and the mean of bits counts every weight."""
    found = look(t0(tmp_path / "m.gguf", types={"token_embd.weight": "f16"})).quantisation
    assert found is not None
    assert ["f32", "f16"] == [one["type"] for one in found["types"]]
    assert 32 - 16 * 2048 / 78144 == pytest.approx(found["bits_per_weight"], abs=1e-3)
    assert (
        look(t0(tmp_path / "z.gguf", drop=_all(), add=[("a", F32, (0,))])).details()["quantisation"]["bits_per_weight"]
        is None
    )


def _all() -> list[str]:
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    blocks = [f"blk.{layer}.{part}.weight" for layer in (0, 1) for part in parts]
    return ["token_embd.weight", "output_norm.weight", "output.weight", *blocks]


def test_equal_tokens_are_told_unless_there_are_too_many_to_look(tmp_path: Path) -> None:
    """The search for equal tokens is bounded by the size of the vocabulary."""
    keys = {**vocabulary(32), "tokenizer.ggml.tokens": Typed(ValueType.STRING, ["same"] * 32, array=True)}
    path = t0(tmp_path / "m.gguf", set_keys=keys)
    assert [True, False] == ["31 tokens" in str(look(path, most).warnings) for most in (None, 10)]


def test_only_what_is_a_file_has_a_description(tmp_path: Path) -> None:
    """A broken file is described by its problem; where there is no file, that is an error."""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3")
    found = look(tmp_path / "broken.gguf")
    assert found.problem is not None
    assert ("truncated", 5, None) == (found.problem.code, found.size_bytes, found.model)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="folder"):
        look(tmp_path / "empty")
    with pytest.raises(NotFoundError):
        look(tmp_path / "missing.gguf")


def test_long_strings_of_an_array_are_cut(tmp_path: Path) -> None:
    """A file's own size says nothing about how much of it is told: first elements are short, and said to be cut."""
    keys: dict[str, MetadataValue | None] = {}
    keys |= {"test.long": Typed(ValueType.STRING, ["x" * 200_000] * 100, array=True), "test.short": ["a"] * 3}
    told = {one["key"]: one for one in look(t0(tmp_path / "m.gguf", set_keys=keys)).details()["metadata"]}
    assert (False, True) == (told["test.long"]["complete"], told["test.short"]["complete"])
    assert 0 < sum(map(len, told["test.long"]["value"])) <= 8000
