"""JSON that people can read through curl, and that line tools can search."""

import json
from collections.abc import Mapping
from typing import Any


def encode(value: Mapping[str, Any]) -> bytes:
    """`value` as JSON, one member a line, and one line for each object of a list (a plan has a tensor per line).

    Characters that UTF-8 cannot carry (a path may hold any bytes) become JSON's own escapes.
    """
    members = ",\n".join(f"  {_dumps(key)}: {_member(member)}" for key, member in value.items())
    return _utf8(f"{{\n{members}\n}}\n")


def encode_line(value: Mapping[str, Any]) -> bytes:
    """`value` as JSON on one line."""
    return _utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n")


def _member(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        items = ",\n".join(f"    {_dumps(item)}" for item in value)
        return f"[\n{items}\n  ]"
    return _dumps(value)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
