"""Patterns over tensor names: RE2, so that none can hang, and all of a request's at once.

The syntax is RE2's; a pattern is found anywhere in a name.
"""

from collections.abc import Sequence
from typing import Final

import re2

from app.errors import RequestError

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False  # a bad pattern is the client's business, told in the answer


_ALWAYS: Final = ""  # found in every name


def check_pattern(pattern: str, field: str) -> None:
    """Raises RequestError naming `field` and the position if `pattern` is not RE2's."""
    _compiled(pattern, field)


class Patterns:
    """Several patterns, searched for together: the time of a search does not grow with their number.

    Raises RequestError for a pattern that is not RE2's, or if together they are too large to compile.
    """

    def __init__(self, patterns: Sequence[str], field: str) -> None:
        self._patterns = [_compiled(pattern, f"{field}[{index}].pattern") for index, pattern in enumerate(patterns)]
        self._set = re2.Set.SearchSet(_OPTIONS)
        for pattern in (*patterns, _ALWAYS):
            self._set.Add(pattern)
        try:
            self._set.Compile()
        except re2.error as error:
            raise RequestError(f"{field}: the patterns are too large together", field=field) from error

    def first(self, name: str) -> int | None:
        """The index of the first pattern found in `name`; None where none is."""
        if not self._patterns:
            return None
        found = min(self._set.Match(name), default=None)
        if found is None:
            # out of memory for its states the set finds nothing at all, not even what is always there
            return next((index for index, pattern in enumerate(self._patterns) if pattern.search(name)), None)
        return found if found < len(self._patterns) else None


def _compiled(pattern: str, field: str) -> "re2._Regexp":
    try:
        return re2.compile(pattern, _OPTIONS)
    except UnicodeEncodeError as error:
        raise RequestError(f"{field}: not valid Unicode", field=field, position=error.start) from error
    except re2.error as error:
        reason, position = _fault(pattern, error)
        raise RequestError(f"{field}: {reason} at {position}", field=field, position=position) from error


def _fault(pattern: str, error: Exception) -> tuple[str, int]:
    """RE2's sentence and the character it speaks of; RE2 tells the faulty piece, and all of it for a lost bracket."""
    told = error.args[0] if error.args else b""
    message = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
    reason, _, piece = message.partition(": ")
    if piece and piece != pattern:
        return f"{reason}: {piece}", max(0, pattern.rfind(piece))
    return reason, _unclosed(pattern)


def _unclosed(pattern: str) -> int:
    """Where the innermost group that is never closed begins; 0 where there is none."""
    open_at: list[int] = []
    position = 0
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 1
        elif pattern[position] == "(":
            open_at.append(position)
        elif pattern[position] == ")" and open_at:
            open_at.pop()
        position += 1
    return open_at[-1] if open_at else 0
