"""A loaded tensor's values as float32, converted while they are read: never more than a piece of them at a time."""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from app.ggml import GgmlType, dequantise
from app.units import KIB

PIECE_VALUES: Final = 256 * KIB  # a megabyte of float32
VALUE_BYTES: Final = 4

ReadRaw = Callable[[int, int], Iterator[bytes]]
"""Bytes `[start, stop)` as they lie on the devices, in pieces of any size."""


def converted_bytes(kind: GgmlType, nbytes: int) -> int:
    """How many bytes `nbytes` of whole blocks in the type `kind` become as float32."""
    return nbytes // kind.type_size * kind.block_size * VALUE_BYTES


def converted(kind: GgmlType, read: ReadRaw, start: int, stop: int) -> Iterator[bytes]:
    """Bytes `[start, stop)` of the values as little-endian float32, in pieces of at most about a megabyte.

    `read` gives the bytes of whole blocks of the type `kind`, one after the other. Raises what `read` raises.
    """
    block_values = kind.block_size * VALUE_BYTES
    first, last = start // block_values, -(-stop // block_values)
    at, left = start - first * block_values, stop - start
    piece_bytes = max(1, PIECE_VALUES // kind.block_size) * kind.type_size
    held = bytearray()
    for raw in read(first * kind.type_size, last * kind.type_size):
        held += raw
        done = 0
        while (whole := min(piece_bytes, len(held) - done) // kind.type_size * kind.type_size) > 0:
            values = dequantise(kind, np.frombuffer(bytes(held[done : done + whole]), np.uint8).reshape(1, -1))
            done += whole
            piece = values.astype("<f4", copy=False).tobytes()[at : at + left]
            at, left = 0, left - len(piece)
            yield piece
        del held[:done]
