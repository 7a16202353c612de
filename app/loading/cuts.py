"""How a tensor's bytes divide among devices, and in which blocks they are best moved. Pure arithmetic.

A cut sees a tensor as `rows` of `row_bytes`: what varies faster than the cut axis, and the axis itself, make up a row;
what varies slower counts the rows. A row is a sequence of segments, a segment of equal runs, and a run has one share
per slot (a slot is one slice on one device), in order. A slice is made of its shares in the same order. Slots may also
take everything (mirrored copies): those are listed in `whole`.

`blocks` divides the file's bytes, in order, into pieces that are read at once:

    shares of large runs        each share by itself, straight to its place, at most `chunk_bytes`
    rows of small shares        as many whole rows as fit `block_bytes`, to be scattered
    rows longer than a block    the same within a row, run by run
    nothing cut                 `chunk_bytes` for one slot, `block_bytes` for several
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from app.planner.plan import PlannedTensor
from app.units import KIB

LARGE_SHARE_BYTES: Final = 128 * KIB  # from here on one more read costs less than one more copy


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSegment:
    """`repeats` runs that begin at byte `offset` of the row; `shares[s]` bytes of each run belong to slot `s`."""

    offset: int
    shares: tuple[int, ...]
    repeats: int

    @property
    def run_bytes(self) -> int:
        """Bytes of one run."""
        return sum(self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How one tensor divides. `slice_row_bytes[s]` is what a row leaves in slot `s`: all of it for a `whole` slot."""

    rows: int
    row_bytes: int
    segments: tuple[CutSegment, ...]
    whole: tuple[int, ...]
    slice_row_bytes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedCopy:
    """`rows` × `repeats` pieces of `nbytes`, from a block to a part of a slice. Offsets and strides in bytes."""

    rows: int
    repeats: int
    nbytes: int
    block_offset: int
    block_row_stride: int
    block_repeat_stride: int
    part_offset: int
    part_row_stride: int
    part_repeat_stride: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a block brings to slot `slot`: bytes `[offset, offset + nbytes)` of its slice.

    `copies` is empty where the part is the block, byte for byte.
    """

    slot: int
    offset: int
    nbytes: int
    copies: tuple[StridedCopy, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes `[offset, offset + nbytes)` of a tensor, and where they go."""

    offset: int
    nbytes: int
    parts: tuple[Part, ...]


def copies_cut(nbytes: int, slots: int) -> Cut:
    """Nothing is cut: every one of `slots` gets all `nbytes`."""
    return Cut(rows=1, row_bytes=nbytes, segments=(), whole=tuple(range(slots)), slice_row_bytes=(nbytes,) * slots)


def tensor_cut(tensor: PlannedTensor) -> Cut:
    """The cut of a planned tensor along its axis; one slot per device of the plan."""
    axis = tensor.axis
    assert axis in (0, 1, 2), f"{tensor.name} is not cut"
    shape = (*tensor.shape, 1, 1, 1)
    if axis == 0:
        unit, rows, block = tensor.type.type_size, _product(shape[1:]), tensor.type.block_size
    else:
        unit = tensor.type.row_bytes(shape[0]) * _product(shape[1:axis])
        rows, block = _product(shape[axis + 1 :]), 1
    slots = len(tensor.bytes_per_device)
    segments: list[CutSegment] = []
    offset = 0
    for planned in tensor.segments:
        assert len(planned.extents) == slots
        assert all(extent % block == 0 for extent in planned.extents), f"{tensor.name} is cut inside a block"
        shares = tuple(extent // block * unit for extent in planned.extents)
        segments.append(CutSegment(offset=offset, shares=shares, repeats=planned.repeats))
        offset += sum(shares) * planned.repeats
    slices = tuple(sum(it.shares[slot] * it.repeats for it in segments) for slot in range(slots))
    assert rows * offset == tensor.nbytes, f"the shares of {tensor.name} are not the tensor"
    assert tuple(rows * part for part in slices) == tensor.bytes_per_device, f"{tensor.name}: shares and bytes differ"
    if offset in slices:  # one device has it all
        everything = tuple(tensor.nbytes if part == offset else 0 for part in slices)
        return Cut(
            rows=1, row_bytes=tensor.nbytes, segments=(), whole=(slices.index(offset),), slice_row_bytes=everything
        )
    return Cut(rows=rows, row_bytes=offset, segments=tuple(segments), whole=(), slice_row_bytes=slices)


def with_copies(cut: Cut, slots: int) -> Cut:
    """The same cut with `slots` more slots that each get everything."""
    if not slots:
        return cut
    first = len(cut.slice_row_bytes)
    more = tuple(range(first, first + slots))
    padded = tuple(
        CutSegment(offset=it.offset, shares=(*it.shares, *(0 for _ in more)), repeats=it.repeats) for it in cut.segments
    )
    rows = (*cut.slice_row_bytes, *(cut.row_bytes for _ in more))
    return Cut(rows=cut.rows, row_bytes=cut.row_bytes, segments=padded, whole=(*cut.whole, *more), slice_row_bytes=rows)


def blocks(cut: Cut, block_bytes: int, chunk_bytes: int) -> Iterator[Block]:
    """The tensor's bytes in file order, each in exactly one block of at most `chunk_bytes` (see the module).

    A block to be scattered has at most `block_bytes`.
    """
    if not cut.segments:
        yield from _plain(cut, chunk_bytes if len(cut.whole) == 1 else block_bytes, 0, 0, cut.nbytes, ())
        return
    small = min(share for segment in cut.segments for share in segment.shares if share) < LARGE_SHARE_BYTES
    if small and cut.row_bytes <= block_bytes:
        yield from _row_groups(cut, block_bytes)
        return
    for row in range(cut.rows):
        for segment in cut.segments:
            if segment.run_bytes:
                yield from _within_row(cut, row, segment, block_bytes, chunk_bytes)


def one_block(cut: Cut) -> Block:
    """The whole tensor as a single block: for tensors so small that several are read at once."""
    if not cut.segments:
        return Block(0, cut.nbytes, tuple(Part(slot, 0, cut.nbytes, ()) for slot in cut.whole))
    return Block(0, cut.nbytes, _row_parts(cut, 0, cut.rows, _row_copies(cut, cut.rows)))


def _row_groups(cut: Cut, block_bytes: int) -> Iterator[Block]:
    """Whole rows, as many as fit; the copies are the same for every full group."""
    group = min(cut.rows, block_bytes // cut.row_bytes)
    copies = _row_copies(cut, group)
    full = cut.rows - cut.rows % group
    for first in range(0, full, group):
        yield Block(first * cut.row_bytes, group * cut.row_bytes, _row_parts(cut, first, group, copies))
    rest = cut.rows - full
    if rest:
        yield Block(full * cut.row_bytes, rest * cut.row_bytes, _row_parts(cut, full, rest, _row_copies(cut, rest)))


def _row_copies(cut: Cut, rows: int) -> tuple[tuple[StridedCopy, ...], ...]:
    """For each slot, how `rows` rows are scattered."""
    copies: list[list[StridedCopy]] = [[] for _ in cut.slice_row_bytes]
    filled = [0] * len(copies)
    for segment in cut.segments:
        for slot, (start, share) in enumerate(_starts(segment.shares)):
            if share:
                copies[slot].append(
                    StridedCopy(
                        rows=rows,
                        repeats=segment.repeats,
                        nbytes=share,
                        block_offset=segment.offset + start,
                        block_row_stride=cut.row_bytes,
                        block_repeat_stride=segment.run_bytes,
                        part_offset=filled[slot],
                        part_row_stride=cut.slice_row_bytes[slot],
                        part_repeat_stride=share,
                    )
                )
                filled[slot] += share * segment.repeats
    return tuple(map(tuple, copies))


def _row_parts(cut: Cut, first: int, rows: int, copies: Sequence[tuple[StridedCopy, ...]]) -> tuple[Part, ...]:
    """Parts of a group of rows; a slot that gets whole rows gets the block as it is."""
    return tuple(
        Part(slot, first * width, rows * width, copies[slot] if width < cut.row_bytes else ())
        for slot, width in enumerate(cut.slice_row_bytes)
        if width
    )


def _within_row(cut: Cut, row: int, segment: CutSegment, block_bytes: int, chunk_bytes: int) -> Iterator[Block]:
    """One segment of one row, where whole rows do not fit a block or shares are large."""
    start = row * cut.row_bytes + segment.offset
    base = [row * width + filled for width, filled in zip(cut.slice_row_bytes, _filled(cut, segment), strict=True)]
    run = segment.run_bytes
    smallest = min(share for share in segment.shares if share)
    if smallest < LARGE_SHARE_BYTES and run <= block_bytes:
        group = min(segment.repeats, block_bytes // run)
        for first in range(0, segment.repeats, group):
            count = min(group, segment.repeats - first)
            offset = start + first * run
            parts = [
                Part(slot, base[slot] + first * share, count * share, _run_copy(segment, share, begin, count))
                for slot, (begin, share) in enumerate(_starts(segment.shares))
                if share
            ]
            yield Block(offset, count * run, (*parts, *_whole_parts(cut, offset, count * run)))
        return
    for repeat in range(segment.repeats):
        for slot, (begin, share) in enumerate(_starts(segment.shares)):
            yield from _plain(
                cut,
                block_bytes if cut.whole else chunk_bytes,
                start + repeat * run + begin,
                base[slot] + repeat * share,
                share,
                (slot,),
            )


def _run_copy(segment: CutSegment, share: int, begin: int, count: int) -> tuple[StridedCopy, ...]:
    if share == segment.run_bytes:
        return ()
    copy = StridedCopy(
        rows=1,
        repeats=count,
        nbytes=share,
        block_offset=begin,
        block_row_stride=count * segment.run_bytes,
        block_repeat_stride=segment.run_bytes,
        part_offset=0,
        part_row_stride=count * share,
        part_repeat_stride=share,
    )
    return (copy,)


def _plain(cut: Cut, size: int, offset: int, slice_offset: int, nbytes: int, slots: tuple[int, ...]) -> Iterator[Block]:
    """`nbytes` at `offset` of the tensor, in pieces that go as they are to `slots` and to the whole slots."""
    for at in range(0, nbytes, size):
        piece = min(size, nbytes - at)
        parts = (Part(slot, slice_offset + at, piece, ()) for slot in slots)
        yield Block(offset + at, piece, (*parts, *_whole_parts(cut, offset + at, piece)))


def _whole_parts(cut: Cut, offset: int, nbytes: int) -> Iterator[Part]:
    return (Part(slot, offset, nbytes, ()) for slot in cut.whole)


def _starts(shares: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Where each share begins in its run, and its bytes."""
    return zip(accumulate(shares, initial=0), shares, strict=False)


def _filled(cut: Cut, until: CutSegment) -> list[int]:
    """Bytes that the segments before `until` left in each slot's row."""
    filled = [0] * len(cut.slice_row_bytes)
    for segment in cut.segments:
        if segment is until:
            break
        for slot, share in enumerate(segment.shares):
            filled[slot] += share * segment.repeats
    return filled


def _product(extents: Sequence[int]) -> int:
    product = 1
    for extent in extents:
        product *= extent
    return product
