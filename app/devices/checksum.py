"""A checksum of bytes at positions that adds up: the order of writes, and how they were cut, does not matter.

Memory is seen as little-endian 64-bit words. Word `j` counts with a weight `w(j)`, odd and scattered over 64 bits:

    checksum = Σ word(j) · w(j)   mod 2^64
    w(j)     = (t xor (t >> 29)) | 1,   t = j · 0x9E3779B97F4A7C15   mod 2^64

Being linear in the bytes, the checksum of a buffer is the sum of the checksums of disjoint pieces at their offsets,
whatever the cuts. Weights are odd, so no single changed byte goes unseen, and they differ, so nor does a swap of two
pieces. Zero bytes add nothing: memory that was never written counts as zeros.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.units import KIB

MASK: Final = 2**64 - 1
_WORD: Final = 8
_PIECE: Final = 96 * KIB  # fits a processor's own cache, and malloc maps no fresh memory for its arrays
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)
_ODD: Final = np.uint64(1)


def position_checksum(data: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """The checksum of `data` lying at byte `offset` of a buffer whose other bytes are zero."""
    source = np.frombuffer(data, np.uint8)
    scratch = np.empty((min(source.size, _PIECE) + 2 * _WORD) // _WORD, np.dtype("<u8"))
    total = 0
    at = 0
    while at < source.size:
        lead = (offset + at) % _WORD
        piece = source[at : at + _PIECE - lead]
        words = scratch[: -(-(lead + piece.size) // _WORD)]
        words[0] = words[-1] = 0
        words.view(np.uint8)[lead : lead + piece.size] = piece
        total += int(np.dot(words, _weights((offset + at) // _WORD, words.size)))
        at += piece.size
    return total & MASK


def _weights(first: int, count: int) -> NDArray[np.uint64]:
    weights = np.arange(first, first + count, dtype=np.uint64)
    weights *= _MULTIPLIER
    weights ^= weights >> _SHIFT
    weights |= _ODD
    return weights
