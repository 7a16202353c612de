"""JSON from outside, read strictly: whatever the bytes are, a value comes out or a RequestError.

Python's own reader takes NaN, Infinity and repeated keys, and answers some texts with exceptions of its own; a request
must mean one thing only.
"""

import json
from typing import Any, NoReturn

from app.errors import RequestError

_SHOWN = 80


def parse(text: bytes) -> Any:
    """The JSON value that `text` (UTF-8) holds. Raises RequestError with `field` null and, where known, `position`."""
    try:
        return json.loads(
            text.decode("utf-8"),
            parse_constant=_no_constant,
            object_pairs_hook=_object_without_repeats,
        )
    except UnicodeDecodeError as error:
        raise _malformed(f"the body is not UTF-8 at byte {error.start}", error.start) from error
    except json.JSONDecodeError as error:
        raise _malformed(f"the body is not JSON: {error.msg} at character {error.pos}", error.pos) from error
    except RecursionError as error:
        raise _malformed("the body is nested too deeply") from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise _malformed("the body holds a number with too many digits") from error


def _no_constant(name: str) -> NoReturn:
    raise _malformed(f"the body is not JSON: {name} is no JSON number")


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _malformed(f"the body has the field {_shown(key)} twice")
        found[key] = value
    return found


def _shown(key: str) -> str:
    quoted = json.dumps(key)
    return quoted if len(quoted) <= _SHOWN else quoted[:_SHOWN] + "…"


def _malformed(message: str, position: int | None = None) -> RequestError:
    return (
        RequestError(message, field=None) if position is None else RequestError(message, field=None, position=position)
    )
