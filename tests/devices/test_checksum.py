import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.devices import checksum
from app.devices.checksum import MASK, position_checksum


def plain(data: bytes, offset: int = 0) -> int:
    """The definition, one byte after the other."""
    total = 0
    for position, byte in enumerate(data, offset):
        t = position // 8 * 0x9E3779B97F4A7C15 & MASK
        total += (byte << 8 * (position % 8)) * ((t ^ t >> 29) | 1)
    return total & MASK


@given(data=st.binary(max_size=200), offset=st.integers(0, 2**40))
def test_the_checksum_is_what_its_definition_says(data: bytes, offset: int) -> None:
    """At any offset the vectorised checksum equals the sum over bytes that its definition spells out."""
    assert plain(data, offset) == position_checksum(data, offset)


@given(
    data=st.binary(max_size=300), offset=st.integers(0, 1000), cuts=st.lists(st.integers(0, 300)), seed=st.integers()
)
def test_pieces_add_up_in_any_order(data: bytes, offset: int, cuts: list[int], seed: int) -> None:
    """However bytes are cut into pieces and in whatever order those are summed, the checksum is the same."""
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [(start, data[start:end]) for start, end in pairwise(edges)]
    random.Random(seed).shuffle(pieces)
    total = sum(position_checksum(piece, offset + start) for start, piece in pieces)
    assert position_checksum(data, offset) == total & MASK


@given(data=st.binary(min_size=1, max_size=64), at=st.integers(0, 63), flip=st.integers(1, 255))
def test_no_single_byte_changes_unseen(data: bytes, at: int, flip: int) -> None:
    """Changing one byte in any way changes the checksum."""
    at %= len(data)
    spoilt = bytearray(data)
    spoilt[at] ^= flip
    assert position_checksum(data) != position_checksum(spoilt)


@given(data=st.binary(min_size=2, max_size=64), at=st.integers(1, 63))
def test_a_rotation_is_seen(data: bytes, at: int) -> None:
    """The same bytes in another place give another checksum."""
    at %= len(data)
    moved = data[at:] + data[:at]
    assert (data == moved) == (position_checksum(data) == position_checksum(moved))


def test_long_data_is_summed_piece_by_piece() -> None:
    """Data longer than a piece, at an odd offset, gives the sum of its parts."""
    data = random.Random(1).randbytes(3 * checksum._PIECE + 5)
    half = checksum._PIECE + 3
    parts = position_checksum(data[:half], 13) + position_checksum(data[half:], 13 + half)
    assert parts & MASK == position_checksum(data, 13)
