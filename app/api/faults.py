"""What is wrong with a value that a client sent, in our own words, whatever checked it."""

from collections.abc import Mapping
from typing import Any, Final

_WORDS: Final[Mapping[str, str]] = {
    "string_type": "a string is meant",
    "int_type": "a whole number is meant",
    "int_from_float": "a whole number is meant",
    "int_parsing": "a whole number is meant",
    "int_parsing_size": "the number is out of range",
    "float_type": "a number is meant",
    "float_parsing": "a number is meant",
    "finite_number": "a finite number is meant",
    "bool_type": "true or false is meant",
    "bool_parsing": "true or false is meant",
    "list_type": "a list is meant",
    "dict_type": "an object is meant",
    "model_type": "an object is meant",
    "model_attributes_type": "an object is meant",
    "string_unicode": "not valid Unicode",
    "extra_forbidden": "there is no such field",
    "missing": "the field is required",
    "enum": "only {expected} can be meant",
    "literal_error": "only {expected} can be meant",
    "too_long": "at most {max_length} are taken",
    "too_short": "at least {min_length} are needed",
    "string_too_long": "at most {max_length} characters are taken",
    "string_too_short": "too short: it takes {min_length} or more",
    "greater_than_equal": "at least {ge} is meant",
    "less_than_equal": "at most {le} is meant",
}


def in_words(fault: Mapping[str, Any]) -> str:
    """The clause for one of pydantic's faults (with its context); its own message for a kind that has none here."""
    words = _WORDS.get(fault["type"])
    return str(fault["msg"]) if words is None else words.format(**fault.get("ctx", {}))
