"""Metadata and vocabulary of files that are allowed and odd, in answers that stay small."""

import math
from pathlib import Path

from app.modelfile.reader import read_model_file
from app.modelfile.types import ModelFile, ValueType
from app.modelfile.writer import MetadataValue, Typed
from app.residency.keys import MAX_PAGE_BYTES, metadata_value, vocabulary_json
from tests.builders import t0

LONG = 100_000


def model(folder: Path, **keys: MetadataValue) -> ModelFile:
    """A file with the keys, `__` standing for a dot."""
    return read_model_file(t0(folder / "m.gguf", set_keys={name.replace("__", "."): it for name, it in keys.items()}))


def test_a_page_of_long_strings_ends_early(tmp_path: Path) -> None:
    """A page is bounded in bytes, has at least one string, and the pages together have them all."""
    words = [str(number) * LONG for number in range(9)] * 20
    odd = model(tmp_path, test__long=Typed(ValueType.STRING, words, array=True))
    found: list[str] = []
    while len(found) < len(words):
        page = metadata_value(odd, "test.long", len(found), 1000)["value"]
        assert 0 < sum(map(len, page)) < MAX_PAGE_BYTES + LONG
        found += page
    assert words == found


def test_a_page_of_long_tokens_ends_early(tmp_path: Path) -> None:
    """The same for a vocabulary; scores and types stay beside their tokens."""
    words = [chr(65 + number) * LONG for number in range(60)]
    scores = [float(number) for number in range(60)]
    odd = model(
        tmp_path,
        tokenizer__ggml__tokens=Typed(ValueType.STRING, words, array=True),
        tokenizer__ggml__scores=Typed(ValueType.F32, scores, array=True),
        llama__vocab_size=32,
    )
    first = vocabulary_json(odd, 0, 1000)["tokens"]
    second = vocabulary_json(odd, len(first), 1000)["tokens"]
    assert 40 < len(first) < 45
    assert [*zip(range(60), words, scores, strict=True)] == [
        (token["id"], token["text"], token["score"]) for token in (*first, *second)
    ]


def test_what_is_no_list_of_strings_has_no_tokens(tmp_path: Path) -> None:
    """Numbers are no tokens, true is no id and no type, and what is not finite is told by name."""
    odd = model(
        tmp_path,
        tokenizer__ggml__model="none",
        tokenizer__ggml__tokens=Typed(ValueType.F32, [math.nan] * 100, array=True),
        tokenizer__ggml__bos_token_id=True,
        tokenizer__ggml__eos_token_id=3,
    )
    told = vocabulary_json(odd, 0, 10)
    assert (0, [], {"eos": 3}) == (told["count"], told["tokens"], told["special"])
    assert ["nan"] * 2 == metadata_value(odd, "tokenizer.ggml.tokens", 98, 10)["value"]
