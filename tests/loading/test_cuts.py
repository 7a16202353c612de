from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.loading import cuts
from app.loading.cuts import Block, Cut, blocks, copies_cut, one_block, tensor_cut, with_copies
from app.loading.transfer import block_array, part_array
from app.units import KIB, MIB
from tests.loading.plans import TYPES, Example, examples, expected_slice, planned


@contextmanager
def large_share(nbytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "LARGE_SHARE_BYTES", nbytes)
        yield


def scatter(cut: Cut, pieces: list[Block], data: bytes) -> list[bytes]:
    """Carry blocks out in plain Python; every byte of every slice must be written exactly once."""
    slices = [bytearray(cut.rows * width) for width in cut.slice_row_bytes]
    written = [np.zeros(len(part), np.int64) for part in slices]
    for block in pieces:
        piece = memoryview(data)[block.offset : block.offset + block.nbytes]
        for part in block.parts:
            place = memoryview(slices[part.slot])[part.offset : part.offset + part.nbytes]
            written[part.slot][part.offset : part.offset + part.nbytes] += 1
            if not part.copies:
                place[:] = piece
            for copy in part.copies:
                np.copyto(part_array(copy, place), block_array(copy, piece))
            place.release()
    assert all((counts == 1).all() for counts in written)
    return [bytes(part) for part in slices]


@given(
    example=examples(max_tensors=1),
    block_bytes=st.sampled_from((1, 7, 64, 500, 4096)),
    chunk_bytes=st.sampled_from((1, 9, 300, 8192)),
    large=st.sampled_from((1, 16, 100, 128 * KIB)),
    extra=st.integers(0, 2),
)
def test_blocks_cover_the_tensor_and_every_slice_exactly_once(
    example: Example, block_bytes: int, chunk_bytes: int, large: int, extra: int
) -> None:
    """Whatever the cut and the block sizes, blocks lie in file order without gap or overlap, and build the slices."""
    tensor, data = example.plan.tensors[0], example.tensor_bytes(0)
    slots = len(example.plan.devices)
    cut = tensor_cut(tensor) if tensor.axis in (0, 1, 2) else copies_cut(tensor.nbytes, slots)
    whole = extra if cut.segments else 0
    cut = with_copies(cut, whole)
    with large_share(large):
        pieces = list(blocks(cut, block_bytes, chunk_bytes))
    at = 0
    for block in pieces:
        assert (at, True) == (block.offset, 0 < block.nbytes <= max(block_bytes, chunk_bytes))
        at += block.nbytes
    assert tensor.nbytes == at
    slices = scatter(cut, pieces, data)
    expected = [expected_slice(tensor, data, slot) for slot in range(slots)] + [data] * whole
    assert expected == slices
    assert expected == scatter(cut, [one_block(cut)], data)


def test_large_shares_are_blocks_of_their_own() -> None:
    """A slice of whole rows is read straight to its place, in chunks of the size asked for, with nothing to scatter."""
    tensor = planned("w", (1024, 4096), axis=1, segments=[((1024, 3072), 1)], devices=2)
    pieces = list(blocks(tensor_cut(tensor), MIB, 8 * MIB))
    assert [(0, 4 * MIB), (4 * MIB, 8 * MIB), (12 * MIB, 4 * MIB)] == [(it.offset, it.nbytes) for it in pieces]
    assert [[(0, ())], [(1, ())], [(1, ())]] == [[(part.slot, part.copies) for part in it.parts] for it in pieces]


def test_short_rows_are_scattered_by_the_megabyte() -> None:
    """A tensor cut along its rows' own axis is read in blocks of whole rows that fit a megabyte, never row by row."""
    tensor = planned("w", (1536, 4096), axis=0, segments=[((512, 1024), 1)], devices=2)
    pieces = list(blocks(tensor_cut(tensor), MIB, 8 * MIB))
    rows = MIB // (1536 * 4)
    assert {rows * 1536 * 4, (4096 % rows) * 1536 * 4} == {it.nbytes for it in pieces}
    assert -(-4096 // rows) == len(pieces)


def test_a_share_of_everything_is_no_cut() -> None:
    """Where one device has all of a tensor, it is moved whole, and devices with nothing appear nowhere."""
    tensor = planned("w", (64, 64), axis=0, segments=[((0, 64, 0), 1)], devices=3, kind=TYPES[1])
    cut = tensor_cut(tensor)
    assert ((), (1,), (0, 64 * 64 * 2, 0)) == (cut.segments, cut.whole, cut.slice_row_bytes)


def test_fused_segments_lie_one_after_the_other() -> None:
    """Fused up and gate: device 0 holds the first rows of each half, in file order."""
    tensor = planned("ffn_up", (256, 768), axis=1, segments=[((128, 256), 1), ((128, 256), 1)], devices=2)
    data = np.arange(256 * 768, dtype=np.float32).reshape(768, 256)
    slices = scatter(tensor_cut(tensor), list(blocks(tensor_cut(tensor), MIB, MIB)), data.tobytes())
    assert np.concatenate((data[0:128], data[384:512])).tobytes() == slices[0]
    assert np.concatenate((data[128:384], data[512:768])).tobytes() == slices[1]


def test_many_short_runs_make_few_blocks() -> None:
    """A row longer than a block with many short runs is read by groups of runs, not run by run."""
    tensor = planned("w", (64, 64 * 1024), axis=1, segments=[((16, 16), 2048)], devices=2)
    pieces = list(blocks(tensor_cut(tensor), MIB, 8 * MIB))
    assert (16, MIB) == (len(pieces), pieces[0].nbytes)
