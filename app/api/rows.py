"""Rows of values as an answer: as JSON, or as numpy's `.npy`; and which of the two a client wants."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.api import jsontext
from app.errors import RequestError
from app.units import MIB

NPY: Final = "application/x-npy"
JSON: Final = "application/json"
_FORMATS: Final = {"json": JSON, "npy": NPY}
_FIELDS: Final = ("tokens", "format", "copy")
_TOKENS: Final = 1 << 14  # written at a time
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_REFUSED: Final = re.compile(r";\s*q\s*=\s*0(?:\.0*)?\s*(?:;|$)")


def parse_embeddings(text: bytes, accept: str) -> tuple[list[int], int | None, str]:
    """The tokens of a request, the copy it wants to read, and the media type of its answer.

    The body's `format` wins over the `Accept` header. Raises RequestError with `field`, or `not_acceptable`.
    """
    body = jsontext.parse(text)
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", field=None)
    for field in body:
        if field not in _FIELDS:
            raise RequestError(f"{field[:80]}: there is no such field", field=field[:80])
    tokens = body.get("tokens")
    if not isinstance(tokens, list):
        raise RequestError("tokens: a list of token ids is required", field="tokens")
    for place, token in enumerate(tokens):
        if type(token) is not int:
            raise RequestError(f"tokens[{place}]: is not an integer", field=f"tokens[{place}]")
    copy = body.get("copy")
    if copy is not None and (type(copy) is not int or not 0 <= copy < 2**31):
        raise RequestError("copy: must be a number of a copy, counted from 0", field="copy")
    wish = body.get("format")
    if wish is None:
        return tokens, copy, _accepted(accept)
    if not isinstance(wish, str) or wish not in _FORMATS:
        raise RequestError(f"format: must be one of {', '.join(_FORMATS)}", field="format")
    return tokens, copy, _FORMATS[wish]


def npy_header(values: NDArray[np.float32]) -> bytes:
    """The head of a `.npy` file (version 1.0) of little-endian float32 in C order."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {values.shape}, }}"
    padded = text + " " * (-(len(_MAGIC) + 2 + len(text) + 1) % 64) + "\n"
    return _MAGIC + len(padded).to_bytes(2, "little") + padded.encode("ascii")


def npy_pieces(values: NDArray[np.float32]) -> Iterator[bytes]:
    """A `.npy` file, in pieces of about a megabyte."""
    yield npy_header(values)
    if values.size:
        whole = values.astype("<f4", copy=False).reshape(-1).data.cast("B")
        for at in range(0, whole.nbytes, MIB):
            yield bytes(whole[at : at + MIB])


def json_pieces(values: NDArray[np.float32], tokens: Sequence[int]) -> Iterator[bytes]:
    """The rows as JSON, one a line. A value that is not finite becomes null: JSON has no word for it.

    Made row by row: one call for all of it would keep every other thread waiting.
    """
    held = bytearray(f'{{\n  "dtype": "f32",\n  "shape": {[*values.shape]},\n  "tokens": ['.encode())
    for at in range(0, len(tokens), _TOKENS):
        held += (", " if at else "").encode() + ", ".join(map(str, tokens[at : at + _TOKENS])).encode()
        if len(held) >= MIB:
            yield bytes(held)
            held.clear()
    held += b'],\n  "embeddings": ['
    for number, row in enumerate(values):
        listed: list[Any] = row.tolist()
        if not np.isfinite(row).all():
            listed = [value if finite else None for value, finite in zip(listed, np.isfinite(row), strict=True)]
        held += b"\n    " if number == 0 else b",\n    "
        held += json.dumps(listed, separators=(",", ":")).encode()
        if len(held) >= MIB:
            yield bytes(held)
            held.clear()
    yield bytes(held) + b"\n  ]\n}\n"


def _accepted(accept: str) -> str:
    """What `Accept` leads to: JSON, unless the client names npy and not JSON, or refuses JSON."""
    named = {
        part.split(";")[0].strip().lower()
        for part in accept.split(",")
        if part.strip() and _REFUSED.search(part) is None
    }
    if not accept.strip() or JSON in named:
        return JSON
    if NPY in named:
        return NPY
    if named & {"*/*", "application/*"}:
        return JSON
    raise RequestError(
        f"the answer is {JSON} or {NPY}, and the client accepts neither", code="not_acceptable", available=[JSON, NPY]
    )
