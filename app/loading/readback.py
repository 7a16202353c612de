"""Reading a loaded model back from its devices: the slices of a tensor joined to what the file said.

Reads go to the devices, not to the file, in blocks of at most a megabyte.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import numpy as np

from app.devices.backend import Buffer
from app.loading.cuts import Block, Cut, blocks, copies_cut, tensor_cut
from app.loading.layout import Layout, Placement
from app.loading.transfer import BLOCK_BYTES, block_array, part_array
from app.planner.plan import PlannedTensor, SplitPlan


def placements_of(layout: Layout, tensor: int) -> tuple[Placement, ...]:
    """Where the parts of a tensor lie, in the plan's device order; devices without a part are left out."""
    found = layout.placements
    first = bisect_left(found, tensor, key=lambda placement: placement.tensor)
    end = bisect_left(found, tensor + 1, key=lambda placement: placement.tensor)
    return found[first:end]


def read_slice(layout: Layout, buffers: Mapping[int, Buffer], tensor: int, device: str) -> bytes:
    """What `device` holds of a tensor, as it lies there; empty where it holds nothing.

    Raises DeviceError where the device keeps no bytes, FileError where it maps a file that was cut short.
    """
    return b"".join(stream_slice(layout, buffers, tensor, device))


def stream_slice(
    layout: Layout, buffers: Mapping[int, Buffer], tensor: int, device: str, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """Bytes `[start, stop)` of what `device` holds, in pieces of at most a megabyte. Raises as `read_slice`."""
    for placement in placements_of(layout, tensor):
        if placement.device == device:
            end = placement.nbytes if stop is None else min(stop, placement.nbytes)
            for at in range(start, end, BLOCK_BYTES):
                yield _fetch(buffers, placement, at, min(BLOCK_BYTES, end - at))


def join(plan: SplitPlan, layout: Layout, buffers: Mapping[int, Buffer], tensor: int) -> bytes:
    """The whole tensor as the file has it. `tensor` counts through the plan's tensors, then its caches.

    Raises as `read_slice`.
    """
    return b"".join(stream(plan, layout, buffers, tensor))


def stream(
    plan: SplitPlan, layout: Layout, buffers: Mapping[int, Buffer], tensor: int, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """Bytes `[start, stop)` of the whole tensor, in pieces of at most a megabyte. Raises as `read_slice`."""
    planned = (*plan.tensors, *plan.caches)[tensor]
    end = planned.nbytes if stop is None else min(stop, planned.nbytes)
    placements = {placement.device: placement for placement in placements_of(layout, tensor)}
    cut, slots = cut_and_slots(plan, planned, placements)
    for block in blocks(cut, BLOCK_BYTES, BLOCK_BYTES):
        if block.offset >= end:
            return
        first, last = max(start, block.offset), min(end, block.offset + block.nbytes)
        if first < last:
            yield _gather(block, slots, buffers)[first - block.offset : last - block.offset]


def cut_and_slots(
    plan: SplitPlan, planned: PlannedTensor, placements: Mapping[str, Placement]
) -> tuple[Cut, tuple[Placement | None, ...]]:
    """How the tensor divides, and where each slot of that cut lies."""
    if planned.axis in (0, 1, 2) and planned.nbytes:
        return tensor_cut(planned), tuple(placements.get(device.name) for device in plan.devices)
    # one copy is as good as another
    return copies_cut(planned.nbytes, 1), tuple(placements.values())[:1]


def _gather(block: Block, slots: tuple[Placement | None, ...], buffers: Mapping[int, Buffer]) -> bytes:
    """The inverse of scattering a block."""
    joined = bytearray(block.nbytes)
    for part in block.parts:
        placement = slots[part.slot]
        assert placement is not None, "a slot with bytes has a placement"
        data = _fetch(buffers, placement, part.offset, part.nbytes)
        if not part.copies:
            return data
        for copy in part.copies:
            np.copyto(block_array(copy, memoryview(joined)), part_array(copy, memoryview(data)))
    return bytes(joined)


def _fetch(buffers: Mapping[int, Buffer], placement: Placement, offset: int, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    if nbytes:
        buffers[placement.buffer].read_into(placement.offset + offset, memoryview(data))
    return bytes(data)
