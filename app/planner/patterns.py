"""Patterns over tensor names: RE2, so that none can hang, and all of a request's at once.

The syntax is RE2's; a pattern is found anywhere in a name.
"""

from collections.abc import Sequence
from typing import Final

import re2

from app.errors import RequestError
from app.units import KIB, MIB

# Compiling is what a pattern costs, and it cannot be interrupted: each is held small (milliseconds), and all together.
_PATTERN_MEMORY: Final = 256 * KIB
_SET_MEMORY: Final = 64 * MIB
MAX_INSTRUCTIONS: Final = 200_000

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False  # a bad pattern is the client's business, told in the answer
_OPTIONS.max_mem = _PATTERN_MEMORY
_SET_OPTIONS: Final = re2.Options()
_SET_OPTIONS.log_errors = False
_SET_OPTIONS.max_mem = _SET_MEMORY


_ALWAYS: Final = ""  # found in every name


def check_patterns(patterns: Sequence[str], field: str) -> None:
    """Raises RequestError naming `field`, the pattern's index and the position, if one is not RE2's or too large.

    Also if all together are: the time to compile them is bounded, whatever they are.
    """
    _compile_all(patterns, field)


class Patterns:
    """Several patterns, searched for together: the time of a search does not grow with their number.

    Raises RequestError as `check_patterns` does.
    """

    def __init__(self, patterns: Sequence[str], field: str) -> None:
        self._patterns = _compile_all(patterns, field)
        self._set = re2.Set.SearchSet(_SET_OPTIONS)
        for pattern in (*patterns, _ALWAYS):
            self._set.Add(pattern)
        self._set.Compile()

    def first(self, name: str) -> int | None:
        """The index of the first pattern found in `name`; None where none is."""
        if not self._patterns:
            return None
        found = min(self._set.Match(name), default=None)
        if found is None:
            # out of memory for its states the set finds nothing at all, not even what is always there
            return next((index for index, pattern in enumerate(self._patterns) if pattern.search(name)), None)
        return found if found < len(self._patterns) else None


def _compile_all(patterns: Sequence[str], field: str) -> "list[re2._Regexp]":
    compiled = []
    instructions = 0
    for index, pattern in enumerate(patterns):
        compiled.append(_compiled(pattern, f"{field}[{index}].pattern"))
        instructions += compiled[-1].programsize
        if instructions > MAX_INSTRUCTIONS:
            raise RequestError(
                f"{field}: the patterns up to number {index} are too large together: they compile to more than "
                f"{MAX_INSTRUCTIONS} instructions",
                field=field,
                expected=MAX_INSTRUCTIONS,
                found=instructions,
            )
    return compiled


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
