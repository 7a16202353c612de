"""Single rows of a loaded tensor, gathered from its devices: what a lookup of embeddings needs.

A device that the host can address gives all its rows in one gather. From any other, rows that lie close together are
read as one, gaps included: up to some kilobytes, copying what is not wanted costs less than one more call.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.devices.backend import Buffer
from app.loading.cuts import Cut
from app.loading.layout import Layout, Placement
from app.loading.readback import cut_and_slots, placements_of
from app.loading.transfer import BLOCK_BYTES
from app.planner.plan import SplitPlan
from app.units import KIB

MAX_GAP_BYTES: Final = 16 * KIB
Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


def read_rows(plan: SplitPlan, layout: Layout, buffers: Mapping[int, Buffer], tensor: int, rows: Indices) -> Bytes:
    """Rows `rows` of a tensor as the file has them: uint8 `[len(rows), bytes of a row]`, in the order asked for.

    `tensor` counts through the plan's tensors, then its caches; a row is ne0 elements, and rows are counted through
    the further dimensions. Every index is a row of the tensor.
    Raises DeviceError where the device keeps no bytes, FileError where it maps a file that was cut short.
    """
    planned = (*plan.tensors, *plan.caches)[tensor]
    row_bytes = planned.type.row_bytes(planned.shape[0])
    placements = {placement.device: placement for placement in placements_of(layout, tensor)}
    cut, slots = cut_and_slots(plan, planned, placements)
    found: Bytes = np.empty((len(rows), row_bytes), np.uint8)
    if not rows.size:
        return found
    if not cut.segments:
        _gather(buffers, slots[cut.whole[0]], row_bytes, rows, found)
    elif planned.axis == 0:
        _gather_columns(buffers, cut, slots, rows, found)
    else:
        _gather_rows(buffers, cut, slots, rows, found)
    return found


def _gather_columns(
    buffers: Mapping[int, Buffer], cut: Cut, slots: tuple[Placement | None, ...], rows: Indices, found: Bytes
) -> None:
    """Every device has a part of every row."""
    for slot, (placement, width) in enumerate(zip(slots, cut.slice_row_bytes, strict=True)):
        if not width:
            continue
        part: Bytes = np.empty((len(rows), width), np.uint8)
        _gather(buffers, placement, width, rows, part)
        at = 0
        for segment in cut.segments:
            share, before = segment.shares[slot], sum(segment.shares[:slot])
            for repeat in range(segment.repeats if share else 0):
                start = segment.offset + repeat * segment.run_bytes + before
                found[:, start : start + share] = part[:, at : at + share]
                at += share


def _gather_rows(
    buffers: Mapping[int, Buffer], cut: Cut, slots: tuple[Placement | None, ...], rows: Indices, found: Bytes
) -> None:
    """Every device has some of the rows, whole."""
    row_bytes = found.shape[1]
    slot_of, row_of = _owners(cut, row_bytes, rows)
    for slot, placement in enumerate(slots):
        mine = np.flatnonzero(slot_of == slot)
        if len(mine) == len(rows):
            _gather(buffers, placement, row_bytes, row_of, found)
        elif mine.size:
            part: Bytes = np.empty((len(mine), row_bytes), np.uint8)
            _gather(buffers, placement, row_bytes, row_of[mine], part)
            found[mine] = part


def _owners(cut: Cut, row_bytes: int, rows: Indices) -> tuple[Indices, Indices]:
    """For each row, the slot that has it, and which of the slot's rows it is."""
    slot_of, row_of = np.zeros_like(rows), np.zeros_like(rows)
    outer, within = np.divmod(rows, cut.row_bytes // row_bytes)
    slice_rows = np.array(cut.slice_row_bytes, np.int64) // row_bytes
    filled = np.zeros_like(slice_rows)
    for segment in cut.segments:
        shares = np.array(segment.shares, np.int64) // row_bytes
        run = int(shares.sum())
        if not run:
            continue
        first = segment.offset // row_bytes
        here = np.flatnonzero((within >= first) & (within < first + run * segment.repeats))
        repeat, place = np.divmod(within[here] - first, run)
        ends = np.cumsum(shares)
        slot = np.searchsorted(ends, place, side="right")
        slot_of[here] = slot
        row_of[here] = (
            outer[here] * slice_rows[slot] + filled[slot] + repeat * shares[slot] + place - (ends - shares)[slot]
        )
        filled += shares * segment.repeats
    return slot_of, row_of


def _gather(
    buffers: Mapping[int, Buffer], placement: Placement | None, width: int, rows: Indices, found: Bytes
) -> None:
    """Rows of `width` bytes of one slice, into `found`."""
    assert placement is not None, "a slot with bytes has a placement"
    buffer = buffers[placement.buffer]
    view = buffer.view(placement.offset, placement.nbytes)
    if view is not None:
        with view:
            whole = np.frombuffer(view, np.uint8).reshape(-1, width)
            np.take(whole, rows, axis=0, out=found, mode="clip")  # "raise" would gather into a second array first
            del whole  # or the view could not be released
        return
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    for start, stop in _close_together(ordered, width):
        first, last = int(ordered[start]), int(ordered[stop - 1])
        span = np.empty((last - first + 1, width), np.uint8)
        buffer.read_into(placement.offset + first * width, span.data.cast("B"))
        found[order[start:stop]] = span[ordered[start:stop] - first]


def _close_together(ordered: Indices, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of `ordered` that are read at once: gaps are small, and a span has at most a block (or one row)."""
    apart = np.flatnonzero(np.diff(ordered) * width > MAX_GAP_BYTES + width) + 1
    for start, stop in zip((0, *apart.tolist()), (*apart.tolist(), len(ordered)), strict=True):
        while start < stop:
            limit = int(ordered[start]) + max(1, BLOCK_BYTES // width)
            end = start + int(np.searchsorted(ordered[start:stop], limit, side="left"))
            yield start, end
            start = end
