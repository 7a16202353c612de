"""What a model's file says besides its tensors: metadata and vocabulary, in answers of bounded size.

Short values are in memory since the file was read. Long arrays are read from the file again when they are asked for,
after a check that it is still the same one.
"""

import re
from typing import Any, Final

from app.errors import NotFoundError
from app.modelfile.reader import read_array
from app.modelfile.text import brief
from app.modelfile.types import ArrayValue, KeyValue, ModelFile
from app.modelfile.vocabulary import MODEL, PRE, SCORES, TOKEN_TYPE, TOKENS

SHORT_ARRAY: Final = 64
SHORT_TEXT: Final = 1000
TOKEN_TYPES: Final = ("undefined", "normal", "unknown", "control", "user_defined", "unused", "byte")
"""What the numbers of `tokenizer.ggml.token_type` mean (`llama_token_type`)."""

_SPECIAL: Final = re.compile(r"tokenizer\.ggml\.(.+)_token_id")


def metadata_json(model: ModelFile) -> list[dict[str, Any]]:
    """Every key with its type and value; values that are long are cut, and `complete` is false. Reads nothing."""
    return [_entry(entry) for entry in model.metadata.values()]


def metadata_value(model: ModelFile, key: str, offset: int, limit: int) -> dict[str, Any]:
    """One key with its whole value, or with elements `[offset, offset + limit)` of an array.

    Raises NotFoundError `key_not_found`, FileError `file_changed`.
    """
    entry = model.metadata.get(key)
    if entry is None:
        raise NotFoundError(f"the model has no metadata key {brief(key)!r}", code="key_not_found")
    if not isinstance(entry.value, ArrayValue):
        return {**_entry(entry), "value": _finite(entry.value), "complete": True}
    values = [_finite(value) for value in read_array(model, key, offset, offset + limit)]
    complete = len(values) == entry.value.count
    return {**_entry(entry), "offset": offset, "value": values, "complete": complete}


def vocabulary_json(model: ModelFile, offset: int, limit: int) -> dict[str, Any]:
    """The tokenizer's name and special tokens, and the tokens `[offset, offset + limit)` with scores and types.

    Scores and types are null where the file has none; a model without a vocabulary has 0 tokens.
    Raises FileError `file_changed`.
    """
    columns = {
        name: read_array(model, key, offset, offset + limit) if _is_array(model, key) else []
        for name, key in (("text", TOKENS), ("score", SCORES), ("type", TOKEN_TYPE))
    }
    tokens = model.metadata.get(TOKENS)
    count = tokens.value.count if tokens is not None and isinstance(tokens.value, ArrayValue) else 0
    return {
        "model": _text(model, MODEL),
        "pre": _text(model, PRE),
        "special": _special(model),
        "count": count,
        "tokens": [
            {
                "id": offset + place,
                "text": text,
                "score": _finite(_at(columns["score"], place)),
                "type": _type_name(_at(columns["type"], place)),
            }
            for place, text in enumerate(columns["text"])
        ],
    }


def _entry(entry: KeyValue) -> dict[str, Any]:
    value = entry.value
    if isinstance(value, ArrayValue):
        whole = value.elements is not None and value.count <= SHORT_ARRAY
        return {
            "key": entry.key,
            "type": "array",
            "element_type": value.element_type.name.lower(),
            "count": value.count,
            "value": [_finite(element) for element in value.elements or ()] if whole else None,
            "complete": whole,
        }
    shown = {"key": entry.key, "type": entry.type.name.lower()}
    if isinstance(value, str) and len(value) > SHORT_TEXT:
        return {**shown, "count": len(value), "value": value[:SHORT_TEXT], "complete": False}
    return {**shown, "value": _finite(value), "complete": True}


def _special(model: ModelFile) -> dict[str, int]:
    """The ids of the special tokens that the file names, by their names: `bos`, `eos`, …"""
    found = ((match[1], entry.value) for key, entry in model.metadata.items() if (match := _SPECIAL.fullmatch(key)))
    return {name: value for name, value in found if isinstance(value, int)}


def _is_array(model: ModelFile, key: str) -> bool:
    entry = model.metadata.get(key)
    return entry is not None and isinstance(entry.value, ArrayValue)


def _text(model: ModelFile, key: str) -> str | None:
    entry = model.metadata.get(key)
    return entry.value if entry is not None and isinstance(entry.value, str) else None


def _at(column: list[Any], place: int) -> Any:
    return column[place] if place < len(column) else None


def _type_name(number: Any) -> str | int | None:
    if isinstance(number, int) and 0 <= number < len(TOKEN_TYPES):
        return TOKEN_TYPES[number]
    return number if isinstance(number, int) else None


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; they are written as text."""
    return str(value) if isinstance(value, float) and value - value != 0 else value
