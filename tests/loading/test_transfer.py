import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.devices.checksum import MASK, position_checksum
from app.devices.simulated import SimulatedBuffer
from app.ggml import BY_NAME
from app.loading import cuts
from app.loading.readback import join, read_slice
from app.loading.transfer import BLOCK_BYTES, move
from app.modelfile.types import TensorInfo
from app.planner.plan import Axis
from app.units import KIB, MIB
from tests.loading.moving import Tally, backends_for, free_all, layout_for, one_tensor
from tests.loading.plans import (
    Example,
    MemorySource,
    examples,
    expected_slice,
    make_buffers,
    plan_device,
    plan_of,
    planned,
)

F32 = BY_NAME["f32"]


@given(
    example=examples(),
    kind=st.sampled_from(("host", "kept", "mixed")),
    chunk_bytes=st.sampled_from((1, 50, 1000, 8 * MIB)),
    large=st.sampled_from((1, 64, 128 * KIB)),
    threads=st.integers(1, 3),
)
def test_slices_land_byte_exact_on_every_kind_of_device(
    example: Example, kind: str, chunk_bytes: int, large: int, threads: int
) -> None:
    """Layout and move put exactly the bytes of its slice on every device, and joining them gives the file's tensor."""
    plan = example.plan
    backends = backends_for(plan, kind)
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    sources = [MemorySource(shard) for shard in example.shards]
    tally = Tally()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "LARGE_SHARE_BYTES", large)
        read = move(
            layout.steps,
            sources,
            buffers,
            threading.Event(),
            threads=threads,
            chunk_bytes=chunk_bytes,
            progress=tally,
        )
    for index, tensor in enumerate(plan.tensors):
        data = example.tensor_bytes(index)
        assert data == join(plan, layout, buffers, index)
        if tensor.axis is not None:
            for slot, device in enumerate(plan.devices):
                assert expected_slice(tensor, data, slot) == read_slice(layout, buffers, index, device.name)
    assert {it.name: it.total_bytes for it in plan.totals if it.total_bytes} == tally.bytes
    assert read == sum(nbytes for source in sources for _, nbytes in source.reads)
    free_all(buffers, backends)


@given(example=examples(), chunk_bytes=st.sampled_from((16, 500, 8 * MIB)))
def test_a_checksum_stands_for_the_bytes(example: Example, chunk_bytes: int) -> None:
    """A device that keeps no bytes ends with the checksum of exactly the slices it was to get, at their places."""
    plan = example.plan
    backends = backends_for(plan, "checksum")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    sources = [MemorySource(shard) for shard in example.shards]
    move(layout.steps, sources, buffers, threading.Event(), threads=2, chunk_bytes=chunk_bytes)
    names = [device.name for device in plan.devices]
    for number, buffer in buffers.items():
        assert isinstance(buffer, SimulatedBuffer)
        expected = written = 0
        for placement in layout.placements:
            if placement.buffer == number:
                tensor = plan.tensors[placement.tensor]
                slot = names.index(placement.device) if tensor.axis is not None else 0
                part = expected_slice(tensor, example.tensor_bytes(placement.tensor), slot)
                expected += position_checksum(part, placement.offset)
                written += len(part)
        assert (expected & MASK, written) == (buffer.checksum, buffer.written_bytes)
    free_all(buffers, backends)


@pytest.mark.parametrize("kind", ["host", "kept", "mixed"])
@pytest.mark.parametrize(
    ("axis", "shape", "extents"),
    [
        (0, (1536, 3000), (512, 0, 1024)),
        (1, (768, 3000), (1000, 500, 1500)),
        (1, (768, 3000), (10, 1490, 1500)),
        (2, (256, 30, 100), (20, 30, 50)),
        (1, (64, 90, 300), (30, 20, 40)),
        ("mirrored", (768, 3000), ()),
    ],
)
def test_each_byte_is_read_once_in_large_reads(
    kind: str, axis: Axis, shape: tuple[int, ...], extents: tuple[int, ...]
) -> None:
    """However a tensor is cut, no byte of it is read twice, and no read is by row: few reads, most of a megabyte."""
    plan = one_tensor(axis, shape, extents, ["d0", "d1", "d2"])
    nbytes = plan.tensors[0].nbytes
    data = bytes(range(251)) * (nbytes // 251 + 1)
    source = MemorySource(data[:nbytes])
    backends = backends_for(plan, kind)
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    read = move(layout.steps, [source], buffers, threading.Event(), threads=1)
    ends = [offset + length for offset, length in source.reads]
    assert [0, *ends[:-1]] == [offset for offset, _ in source.reads]
    assert nbytes == read == ends[-1]
    assert len(source.reads) <= nbytes / (512 * KIB) + 3
    assert data[:nbytes] == join(plan, layout, buffers, 0)
    free_all(buffers, backends)


def test_what_is_staged_is_read_by_the_block() -> None:
    """For a device that cannot be addressed no read exceeds a block, so staging stays small whatever the tensor."""
    plan = one_tensor("mirrored", (1 << 20, 20), (), ["d0"])
    source = MemorySource(bytes(plan.tensors[0].nbytes))
    backends = backends_for(plan, "checksum")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    move(layout.steps, [source], buffers, threading.Event(), threads=2, chunk_bytes=64 * MIB)
    assert BLOCK_BYTES == max(nbytes for _, nbytes in source.reads)
    free_all(buffers, backends)


def test_small_neighbours_are_read_together() -> None:
    """A hundred norms that lie side by side, padded apart, are a handful of reads and still land one by one."""
    tensors = []
    for number in range(100):
        origin = TensorInfo(name=f"n{number}", type=F32, shape=(500,), shard=0, offset=2016 * number, nbytes=2000)
        tensors.append(planned(origin.name, (500,), axis="mirrored", devices=2, source=origin))
    plan = plan_of(tensors, [plan_device("d0"), plan_device("d1")])
    data = bytes(byte % 253 for byte in range(2016 * 100))
    source = MemorySource(data)
    backends = backends_for(plan, "mixed")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    read = move(layout.steps, [source], buffers, threading.Event(), threads=2)
    assert (1, 2016 * 99 + 2000) == (len(source.reads), read)
    for number in range(100):
        for device in ("d0", "d1"):
            assert data[2016 * number : 2016 * number + 2000] == read_slice(layout, buffers, number, device)
    free_all(buffers, backends)


def test_nothing_to_copy_is_done_at_once() -> None:
    """A load whose every tensor is mapped has no steps: move answers 0 and needs no source."""
    assert move((), [], {}, threading.Event()) == 0


def test_beside_the_model_there_are_only_blocks() -> None:
    """Moving 256 MiB to devices that keep nothing takes no more anonymous memory than two blocks a thread."""

    def anonymous() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * KIB for line in status.splitlines() if line.startswith("RssAnon"))

    class Zeros:
        size = 256 * MIB

        def read_into(self, offset: int, target: memoryview) -> None:
            target[:] = zeros[: target.nbytes]

        def close(self) -> None:
            """Nothing to give back."""

    zeros = bytes(BLOCK_BYTES)
    plan = one_tensor(0, (1024, 65536), (256, 768), ["d0", "d1"])
    backends = backends_for(plan, "checksum")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    before, peak = anonymous(), 0

    def watch(device: str, nbytes: int) -> None:
        nonlocal peak
        peak = max(peak, anonymous())

    move(layout.steps, [Zeros()], buffers, threading.Event(), threads=4, progress=watch)
    assert peak - before < 4 * 2 * BLOCK_BYTES + 16 * MIB
    free_all(buffers, backends)
