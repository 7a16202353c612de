"""What a model's file says besides its tensors: metadata and vocabulary, in answers of bounded size.

Short values are in memory since the file was read. Long arrays are read from the file again when they are asked for,
after a check that it is still the same one.
"""

import re
from typing import Any, Final, TypeGuard

from app.errors import NotFoundError
from app.modelfile.reader import read_array
from app.modelfile.text import brief
from app.modelfile.types import ArrayValue, KeyValue, ModelFile, ValueType
from app.modelfile.vocabulary import MODEL, PRE, SCORES, TOKEN_TYPE, TOKENS
from app.units import MIB

SHORT_ARRAY: Final = 64
SHORT_TEXT: Final = 1000
MAX_PAGE_BYTES: Final = 4 * MIB
TOKEN_TYPES: Final = ("undefined", "normal", "unknown", "control", "user_defined", "unused", "byte")
"""What the numbers of `tokenizer.ggml.token_type` mean (`llama_token_type`)."""

_SPECIAL: Final = re.compile(r"tokenizer\.ggml\.(.+)_token_id")


def metadata_json(model: ModelFile) -> list[dict[str, Any]]:
    """Every key with its type and value; values that are long are cut, and `complete` is false. Reads nothing."""
    return [_entry(entry) for entry in model.metadata.values()]


def metadata_value(model: ModelFile, key: str, offset: int, limit: int) -> dict[str, Any]:
    """One key with its whole value, or with elements `[offset, offset + limit)` of an array.

    Of long strings there are fewer: a page ends with the one that reaches MAX_PAGE_BYTES.
    Raises NotFoundError `key_not_found`, FileError `file_changed`.
    """
    entry = model.metadata.get(key)
    if entry is None:
        raise NotFoundError(f"the model has no metadata key {brief(key)!r}", code="key_not_found")
    if not isinstance(entry.value, ArrayValue):
        return {**_entry(entry), "value": finite(entry.value), "complete": True}
    values = [finite(value) for value in read_array(model, key, offset, offset + limit, MAX_PAGE_BYTES)]
    complete = len(values) == entry.value.count
    return {**_entry(entry), "offset": offset, "value": values, "complete": complete}


def vocabulary_json(model: ModelFile, offset: int, limit: int) -> dict[str, Any]:
    """The tokenizer's name and special tokens, and the tokens `[offset, offset + limit)` with scores and types.

    Of long tokens there are fewer, as in `metadata_value`; what is no list of strings has no tokens.
    Scores and types are null where the file has none; a model without a vocabulary has 0 tokens.
    Raises FileError `file_changed`.
    """
    tokens = _array(model, TOKENS)
    count = tokens.count if tokens is not None and tokens.element_type is ValueType.STRING else 0
    texts = read_array(model, TOKENS, offset, offset + limit, MAX_PAGE_BYTES) if count else []
    scores, types = (
        read_array(model, key, offset, offset + len(texts)) if _array(model, key) is not None and texts else []
        for key in (SCORES, TOKEN_TYPE)
    )
    return {
        "model": _text(model, MODEL),
        "pre": _text(model, PRE),
        "special": _special(model),
        "count": count,
        "tokens": [
            {
                "id": offset + place,
                "text": text,
                "score": finite(_at(scores, place)),
                "type": _type_name(_at(types, place)),
            }
            for place, text in enumerate(texts)
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
            "value": [finite(element) for element in value.elements or ()] if whole else None,
            "complete": whole,
        }
    shown = {"key": entry.key, "type": entry.type.name.lower()}
    if isinstance(value, str) and len(value) > SHORT_TEXT:
        return {**shown, "count": len(value), "value": value[:SHORT_TEXT], "complete": False}
    return {**shown, "value": finite(value), "complete": True}


def _special(model: ModelFile) -> dict[str, int]:
    """The ids of the special tokens that the file names, by their names: `bos`, `eos`, …"""
    found = ((match[1], entry.value) for key, entry in model.metadata.items() if (match := _SPECIAL.fullmatch(key)))
    return {name: value for name, value in found if _is_number(value)}


def _array(model: ModelFile, key: str) -> ArrayValue | None:
    entry = model.metadata.get(key)
    return entry.value if entry is not None and isinstance(entry.value, ArrayValue) else None


def _text(model: ModelFile, key: str) -> str | None:
    entry = model.metadata.get(key)
    return entry.value if entry is not None and isinstance(entry.value, str) else None


def _at(column: list[Any], place: int) -> Any:
    return column[place] if place < len(column) else None


def _type_name(number: Any) -> str | int | None:
    if not _is_number(number):
        return None
    return TOKEN_TYPES[number] if 0 <= number < len(TOKEN_TYPES) else int(number)


def _is_number(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number; Python takes truth for one, a file's reader must not."""
    return isinstance(value, int) and not isinstance(value, bool)


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; they are written as text."""
    return str(value) if isinstance(value, float) and value - value != 0 else value
