"""Single rows of a loaded tensor, gathered from its devices: what a lookup of embeddings needs.

Each device is asked once for all the rows it has, or for its part of all of them.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from app.devices.backend import Buffer
from app.loading.cuts import Cut
from app.loading.layout import Layout, Placement
from app.loading.readback import cut_and_slots, placements_of
from app.planner.plan import SplitPlan

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
        _read(buffers, slots[cut.whole[0]], rows, found)
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
        _read(buffers, placement, rows, part)
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
            _read(buffers, placement, row_of, found)
        elif mine.size:
            part: Bytes = np.empty((len(mine), row_bytes), np.uint8)
            _read(buffers, placement, row_of[mine], part)
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


def _read(buffers: Mapping[int, Buffer], placement: Placement | None, rows: Indices, found: Bytes) -> None:
    """Rows of one slice, into `found`."""
    assert placement is not None, "a slot with bytes has a placement"
    buffers[placement.buffer].read_rows(placement.offset, rows, found)
