from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.ggml import TYPES, GgmlType, dequantise
from app.loading.conversion import converted, converted_bytes
from app.units import MIB


@given(
    kind=st.sampled_from(sorted(TYPES.values(), key=lambda kind: kind.id)),
    blocks=st.integers(0, 40),
    piece=st.integers(1, 3000),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 9),
)
def test_any_range_of_the_values(kind: GgmlType, blocks: int, piece: int, ends: tuple[float, float], seed: int) -> None:
    """Bytes [start, stop) of the converted tensor are those of the whole conversion, however the raw bytes arrive."""
    raw = np.random.default_rng(seed).integers(0, 256, blocks * kind.type_size, np.uint8).tobytes()

    def read(start: int, stop: int) -> Iterator[bytes]:
        yield from (raw[at : min(at + piece, stop)] for at in range(start, stop, piece))

    whole = dequantise(kind, np.frombuffer(raw, np.uint8).reshape(1, -1)).astype("<f4").tobytes()
    assert len(whole) == converted_bytes(kind, len(raw))
    start, stop = sorted(int(end * len(whole)) for end in ends)
    assert whole[start:stop] == b"".join(converted(kind, read, start, stop))


def test_pieces_stay_small() -> None:
    """A megabyte of raw bytes in the tightest type becomes pieces of at most a megabyte."""
    kind = next(kind for kind in TYPES.values() if kind.name == "iq1_s")
    raw = bytes(MIB // kind.type_size * kind.type_size)

    def read(start: int, stop: int) -> Iterator[bytes]:
        yield raw[start:stop]

    nbytes = converted_bytes(kind, len(raw))
    sizes = [len(piece) for piece in converted(kind, read, 0, nbytes)]
    assert (nbytes, True) == (sum(sizes), max(sizes) <= MIB)
