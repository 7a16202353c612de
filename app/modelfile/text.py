"""Foreign text made fit to be shown: paths, names and values may hold any bytes, messages and JSON may not."""

import os
from typing import Final

_MOST_SHOWN: Final = 200


def shown(path: str | bytes | os.PathLike[str]) -> str:
    """A path as JSON and people can take it: bytes that are not UTF-8 and control characters are escaped.

    So are lone surrogates, which no file name holds, but a request's JSON may.
    """
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raw = os.fspath(path).encode("utf-8", "backslashreplace")  # type: ignore[union-attr] # only text gets here
    return _printable(raw.decode("utf-8", "backslashreplace"))


def brief(text: str) -> str:
    """A key or name for a message: control characters escaped, the end of a very long one left out."""
    return _printable(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def decode(raw: bytes) -> str:
    """A string of the file. If it is not UTF-8, every byte of it beyond ASCII is escaped (`\\xff`).

    Escaping only the faulty bytes would take a fifth of a second per megabyte, which a hostile file could ask for.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1").encode("ascii", "backslashreplace").decode("ascii")


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
