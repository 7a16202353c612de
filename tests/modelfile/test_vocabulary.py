import os
from pathlib import Path

import pytest

from app.errors import MetadataError
from app.modelfile.reader import read_model_file
from app.modelfile.types import ModelFile, ValueType
from app.modelfile.vocabulary import check_vocabulary, duplicate_tokens
from app.modelfile.writer import MetadataValue, Typed
from tests.builders import t0, vocabulary


def model_with(path: Path, **keys: MetadataValue | None) -> ModelFile:
    """T0(2) with a tokenizer of 32 tokens, its `tokenizer.ggml.…` keys changed (None: left out)."""
    changed = {f"tokenizer.ggml.{name.replace('__', '.')}": value for name, value in keys.items()}
    return read_model_file(t0(path / "m.gguf", set_keys={**vocabulary(), **changed}))


def array(kind: ValueType, count: int) -> Typed:
    """An array of `count` ones, zeros or words."""
    return Typed(kind, (["x"] if kind is ValueType.STRING else [1]) * count, array=True)


def test_a_good_tokenizer(tmp_path: Path) -> None:
    """Arrays that agree give neither errors nor warnings."""
    model = model_with(tmp_path, eos_token_id=31, bos_token_id=0, add_bos_token=True)
    assert check_vocabulary(model) == ()


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"scores": array(ValueType.F32, 3)}, "scores"),
        ({"token_type": array(ValueType.I32, 31)}, "token_type"),
        ({"token_type": array(ValueType.U8, 32)}, "token_type"),
        ({"scores": array(ValueType.U8, 32)}, "scores"),
        ({"scores": 5}, "scores"),
        ({"tokens": array(ValueType.I32, 32)}, "tokens"),
        ({"tokens": "t0"}, "tokens"),
        ({"model": "nosuch"}, "model"),
        ({"model": "gpt2", "merges": array(ValueType.U8, 2)}, "merges"),
        ({"model": "t5", "precompiled_charsmap": array(ValueType.I32, 8)}, "precompiled_charsmap"),
        ({"suppress_tokens": array(ValueType.U32, 1)}, "suppress_tokens"),
    ],
)
def test_arrays_that_disagree(tmp_path: Path, keys: dict[str, MetadataValue | None], key: str) -> None:
    """A tokenizer array that is too short or of another type is bad_tokenizer, naming the key."""
    model = model_with(tmp_path, **keys)
    with pytest.raises(MetadataError) as caught:
        check_vocabulary(model)
    assert (caught.value.code, caught.value.facts["key"]) == ("bad_tokenizer", f"tokenizer.ggml.{key}")
    assert f"tokenizer.ggml.{key}" in caught.value.message


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"model": 5}, "model"),
        ({"add_bos_token": 1}, "add_bos_token"),
        ({"eos_token_id": Typed(ValueType.I32, 1)}, "eos_token_id"),
        ({"normalizer__lowercase": "yes"}, "normalizer.lowercase"),
    ],
)
def test_scalars_of_the_wrong_type(tmp_path: Path, keys: dict[str, MetadataValue | None], key: str) -> None:
    """A tokenizer scalar of another type is wrong_key_type with both types as facts."""
    with pytest.raises(MetadataError) as caught:
        check_vocabulary(model_with(tmp_path, **keys))
    facts = caught.value.facts
    assert (caught.value.code, facts["key"]) == ("wrong_key_type", f"tokenizer.ggml.{key}")
    assert facts["expected"] != facts["found"]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"model": None}, "model"),
        ({"tokens": None}, "tokens"),
        ({"model": "gpt2"}, "merges"),
        ({"model": "gemma4", "pre": "x"}, "merges"),
    ],
)
def test_what_a_tokenizer_lacks(tmp_path: Path, keys: dict[str, MetadataValue | None], key: str) -> None:
    """A file that names no tokenizer, or lacks a list that its tokenizer needs, is missing_key, naming the key."""
    with pytest.raises(MetadataError) as caught:
        check_vocabulary(model_with(tmp_path, **keys))
    assert (caught.value.code, caught.value.facts["key"]) == ("missing_key", f"tokenizer.ggml.{key}")


@pytest.mark.parametrize(
    "keys",
    [
        {"scores": array(ValueType.F32, 40), "token_type": array(ValueType.I32, 33)},
        {"scores": array(ValueType.I32, 32)},
        {"scores": None, "token_type": None},
        {"model": "gpt2", "merges": ["a b"]},
        {"model": "gpt2", "pre": "kimi-k2"},
        {"model": "t5", "precompiled_charsmap": array(ValueType.U8, 8)},
        {"model": "none", "scores": array(ValueType.U8, 1)},
    ],
)
def test_what_is_accepted(tmp_path: Path, keys: dict[str, MetadataValue | None]) -> None:
    """Longer arrays, integer scores, absent optional arrays and unused ones are fine."""
    assert check_vocabulary(model_with(tmp_path, **keys)) == ()


def test_special_tokens_out_of_range(tmp_path: Path) -> None:
    """A special token id that is no token is a warning naming the key and the id."""
    (warning,) = check_vocabulary(model_with(tmp_path, eos_token_id=2**32 - 1, bos_token_id=31))
    assert "eos_token_id" in warning
    assert "4294967295" in warning
    assert len(check_vocabulary(model_with(tmp_path, eos_token_id=32, bos_token_id=32))) == 2


def words_with(*changes: tuple[int, str], count: int = 32) -> Typed:
    """`count` tokens t0, t1, …, some of them changed."""
    words = [f"t{index}" for index in range(count)]
    for index, word in changes:
        words[index] = word
    return Typed(ValueType.STRING, words, array=True)


def test_equal_tokens_are_a_warning(tmp_path: Path) -> None:
    """Two equal tokens are accepted with a warning that counts them and names both places and the text."""
    model = model_with(tmp_path, tokens=words_with((6, "t5"), (9, "t5"), (31, "t5")))
    (warning,) = duplicate_tokens(model)
    assert warning == "tokenizer.ggml.tokens: 3 tokens occur before; the first are 5 and 6, both 't5'"
    assert check_vocabulary(model) == ()
    assert duplicate_tokens(model_with(tmp_path)) == ()
    assert duplicate_tokens(model_with(tmp_path, tokens="t5")) == ()
    assert duplicate_tokens(read_model_file(t0(tmp_path / "none.gguf"))) == ()


def test_tokens_differ_by_their_bytes(tmp_path: Path) -> None:
    """Tokens that look alike once escaped are not equal, and a warning shows bytes that are not UTF-8 escaped."""
    alike = words_with((5, "\\xff"), (6, os.fsdecode(b"\xff")))
    assert duplicate_tokens(model_with(tmp_path, tokens=alike)) == ()
    equal = words_with((5, os.fsdecode(b"\xff")), (6, os.fsdecode(b"\xff")))
    (warning,) = duplicate_tokens(model_with(tmp_path, tokens=equal))
    assert r"'\xff'" in warning


def test_a_long_vocabulary_can_be_left_out(tmp_path: Path) -> None:
    """Equal tokens are looked for in as many bytes as the caller allows, lengths included."""
    model = model_with(tmp_path, tokens=words_with((6, "t5")))
    size = 32 * 8 + 10 * 2 + 22 * 3
    assert len(duplicate_tokens(model, size)) == 1
    assert duplicate_tokens(model, size - 1) == ()


def test_tokenizers_of_real_models(oracle_dir: Path) -> None:
    """Published tokenizers agree with themselves."""
    for path in sorted((oracle_dir / "vocab").glob("*.gguf")):
        model = read_model_file(path)
        assert check_vocabulary(model) == ()
        assert duplicate_tokens(model) == ()
