"""JSON that people can read through curl, and that line tools can search."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.units import MIB

PIECE_BYTES: Final = MIB
_LONG_TEXT: Final = 1 << 14
_LONG_LIST: Final = 1 << 9
_MAY_BE_LONG: Final = (str, dict, list, tuple)


def encode(value: Mapping[str, Any]) -> bytes:
    """`value` as JSON, one member a line, and one line for each object of a list (a plan has a tensor per line).

    Characters that UTF-8 cannot carry (a path may hold any bytes) become JSON's own escapes.
    """
    return b"".join(encode_pieces(value))


def encode_pieces(value: Mapping[str, Any]) -> Iterator[bytes]:
    """The same in pieces: each but the last has `PIECE_BYTES` or a little more.

    However much it is, no single call takes long: while one runs, every other thread waits.
    """
    held = bytearray()
    for text in _object(value):
        held += _utf8(text)
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def encode_line(value: Mapping[str, Any]) -> bytes:
    """`value` as JSON on one line."""
    return _utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n")


def _object(value: Mapping[str, Any]) -> Iterator[str]:
    between = "{\n"
    for key, member in value.items():
        yield f"{between}  {_dumps(key)}: "
        if isinstance(member, list) and member and isinstance(member[0], dict):
            yield from _list_of_lines(member)
        else:
            yield from _texts(member)
        between = ",\n"
    yield "\n}\n" if value else "{\n\n}\n"


def _list_of_lines(items: list[Any]) -> Iterator[str]:
    between = "[\n    "
    for item in items:
        yield between
        yield from _texts(item)
        between = ",\n    "
    yield "\n  ]"


def _texts(value: Any) -> Iterator[str]:
    """`value` on one line, in texts that are quickly made."""
    if not _is_long(value):
        yield _dumps(value)
    elif isinstance(value, str):
        yield '"'
        for at in range(0, len(value), _LONG_TEXT):
            yield _dumps(value[at : at + _LONG_TEXT])[1:-1]  # characters are escaped one by one
        yield '"'
    elif isinstance(value, dict):
        between = "{"
        for key, member in value.items():
            yield f"{between}{_dumps(key)}: "
            yield from _texts(member)
            between = ", "
        yield "}"
    else:
        between = "["
        for item in value:
            yield between
            yield from _texts(item)
            between = ", "
        yield "]"


def _is_long(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > _LONG_TEXT
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    if len(items) > _LONG_LIST:
        return True
    return any(isinstance(item, _MAY_BE_LONG) and _is_long(item) for item in items)


_dumps: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
