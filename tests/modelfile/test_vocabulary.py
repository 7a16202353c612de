from pathlib import Path

import pytest

from app.errors import MetadataError
from app.modelfile.reader import read_model_file
from app.modelfile.types import ModelFile, ValueType
from app.modelfile.vocabulary import check_vocabulary, duplicate_tokens, n_vocab
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
    assert n_vocab(model) == 32


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"scores": array(ValueType.F32, 3)}, "scores"),
        ({"token_type": array(ValueType.I32, 31)}, "token_type"),
        ({"token_type": array(ValueType.U8, 32)}, "token_type"),
        ({"scores": array(ValueType.U8, 32)}, "scores"),
        ({"scores": 5}, "scores"),
        ({"tokens": None}, "tokens"),
        ({"tokens": array(ValueType.I32, 32)}, "tokens"),
        ({"tokens": "t0"}, "tokens"),
        ({"model": "nosuch"}, "model"),
        ({"model": "gpt2"}, "merges"),
        ({"model": "gpt2", "merges": array(ValueType.U8, 2)}, "merges"),
        ({"model": "gemma4", "pre": "x"}, "merges"),
        ({"model": "t5", "precompiled_charsmap": array(ValueType.I32, 8)}, "precompiled_charsmap"),
        ({"suppress_tokens": array(ValueType.U32, 1)}, "suppress_tokens"),
    ],
)
def test_arrays_that_disagree(tmp_path: Path, keys: dict[str, MetadataValue | None], key: str) -> None:
    """A tokenizer array that is missing, too short or of another type is bad_tokenizer, naming the key."""
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


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    """A file that names no tokenizer lacks a key."""
    with pytest.raises(MetadataError) as caught:
        check_vocabulary(model_with(tmp_path, model=None))
    assert caught.value.code == "missing_key"


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


def test_equal_tokens_are_found_when_asked(tmp_path: Path) -> None:
    """Two equal tokens are accepted; asked for, they are a warning that names both places and the text."""
    words = [f"t{index}" for index in range(32)]
    words[6] = words[5]
    model = model_with(tmp_path, tokens=Typed(ValueType.STRING, words, array=True))
    assert check_vocabulary(model) == ()
    (warning,) = duplicate_tokens(model)
    assert "5 and 6" in warning
    assert "'t5'" in warning
    assert duplicate_tokens(model_with(tmp_path)) == ()
    assert duplicate_tokens(read_model_file(t0(tmp_path / "none.gguf"))) == ()


def test_the_size_of_a_vocabulary(tmp_path: Path) -> None:
    """The list's length counts; without a tokenizer the declared size does; without either there is none."""
    assert n_vocab(model_with(tmp_path, tokens=array(ValueType.STRING, 33))) == 33
    assert n_vocab(read_model_file(t0(tmp_path / "a.gguf"))) == 32
    assert n_vocab(model_with(tmp_path, model="none", tokens=array(ValueType.STRING, 33))) == 32
    assert n_vocab(read_model_file(t0(tmp_path / "b.gguf", set_keys={"llama.vocab_size": None}))) is None
    assert n_vocab(read_model_file(t0(tmp_path / "c.gguf", set_keys={"general.architecture": None}))) is None


def test_tokenizers_of_real_models(oracle_dir: Path) -> None:
    """Published tokenizers agree with themselves."""
    for path in sorted((oracle_dir / "vocab").glob("*.gguf")):
        model = read_model_file(path)
        assert check_vocabulary(model) == ()
        size = n_vocab(model)
        assert size is not None
        assert size > 30_000
