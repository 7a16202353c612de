import threading
import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.devices.backend import Backend, Buffer
from app.devices.checksum import MASK, position_checksum
from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend, SimulatedBuffer, SimulatedFailures
from app.errors import CancelledLoadError, CapacityError, DeviceError, FileError, GgufdError
from app.ggml import BY_NAME
from app.loading import cuts
from app.loading.layout import Layout, lay_out
from app.loading.readback import join, read_slice
from app.loading.transfer import BLOCK_BYTES, move
from app.modelfile.types import TensorInfo
from app.planner.plan import Axis, SplitPlan
from app.units import GIB, KIB, MIB
from tests.loading.plans import (
    Example,
    MemorySource,
    decide,
    examples,
    expected_slice,
    make_buffers,
    plan_device,
    plan_of,
    planned,
)

F32 = BY_NAME["f32"]


def backends_for(plan: SplitPlan, kind: str) -> dict[str, Backend]:
    """Backends under the plan's names: all of one kind, or alternating."""
    made: dict[str, Backend] = {}
    for number, total in enumerate(plan.totals):
        if kind == "host" or (kind == "mixed" and number % 2):
            made[total.name] = HostBackend(total.name, GIB)
        else:
            made[total.name] = SimulatedBackend(total.name, GIB, keep_bytes=kind != "checksum")
    return made


def layout_for(plan: SplitPlan, backends: Mapping[str, Backend]) -> Layout:
    facts = {name: backend.facts() for name, backend in backends.items()}
    return lay_out(plan, decide(plan, facts), facts)


def free_all(buffers: Mapping[int, Buffer], backends: Mapping[str, Backend]) -> None:
    """Everything can be given back at once: nobody kept a view."""
    for buffer in buffers.values():
        buffer.free()
    assert dict.fromkeys(backends, 0) == {name: it.facts().allocated_bytes for name, it in backends.items()}


class Tally:
    """Adds up progress; called from several threads."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, device: str, nbytes: int) -> None:
        with self._lock:
            self.bytes[device] = self.bytes.get(device, 0) + nbytes


def one_tensor(axis: Axis, shape: Sequence[int], extents: Sequence[int], names: Sequence[str]) -> SplitPlan:
    """A plan of one F32 tensor at the start of shard 0."""
    segments = [(extents, 1)] if isinstance(axis, int) else []
    model = planned("w", shape, axis=axis, segments=segments, devices=len(names))
    origin = TensorInfo(name="w", type=F32, shape=tuple(shape), shard=0, offset=0, nbytes=model.nbytes)
    tensor = planned("w", shape, axis=axis, segments=segments, devices=len(names), source=origin)
    return plan_of([tensor], [plan_device(name) for name in names])


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


class FaultySource(MemorySource):
    """Fails the read that contains byte `at`, holding on to the target as a real traceback would."""

    def __init__(self, data: bytes, at: int, error: BaseException) -> None:
        super().__init__(data)
        self._at = at
        self._error = error

    def read_into(self, offset: int, target: memoryview) -> None:
        if offset <= self._at < offset + target.nbytes:
            held = target[:1]
            held[:] = b"x"
            raise self._error
        super().read_into(offset, target)


@pytest.mark.parametrize("kind", ["host", "checksum", "mixed"])
@pytest.mark.parametrize(
    ("raised", "expected", "code"),
    [
        (FileError("cut short", code="truncated"), FileError, "truncated"),
        (OSError(5, "Input/output error"), FileError, "read_failed"),
        (MemoryError(), CapacityError, "insufficient_memory"),
    ],
)
def test_the_first_error_stops_the_rest(
    kind: str, raised: BaseException, expected: type[GgufdError], code: str
) -> None:
    """A failing read ends the move with one typed error; no thread and no view is left, so all memory can go."""
    plan = one_tensor(0, (1024, 8192), (256, 768), ["d0", "d1"])
    backends = backends_for(plan, kind)
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    before = threading.active_count()
    source = FaultySource(bytes(plan.tensors[0].nbytes), 9 * MIB, raised)
    with pytest.raises(expected) as caught:
        move(layout.steps, [source], buffers, threading.Event(), threads=2)
    assert code == caught.value.code
    assert before == threading.active_count()
    assert sum(nbytes for _, nbytes in source.reads) < 16 * MIB
    free_all(buffers, backends)


def test_a_device_that_fails_ends_the_move() -> None:
    """A write that fails after so many bytes is a DeviceError naming the device, and nothing goes on after it."""
    plan = one_tensor(0, (1024, 4096), (512, 512), ["d0", "d1"])
    backends: dict[str, Backend] = {
        "d0": HostBackend("d0", GIB),
        "d1": SimulatedBackend("d1", GIB, failures=SimulatedFailures(fail_after_bytes=3 * MIB)),
    }
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    source = MemorySource(bytes(plan.tensors[0].nbytes))
    with pytest.raises(DeviceError, match="d1") as caught:
        move(layout.steps, [source], buffers, threading.Event(), threads=2)
    assert ("d1", "write") == (caught.value.facts["device"], caught.value.facts["operation"])
    free_all(buffers, backends)


@pytest.mark.parametrize("bytes_per_second", [200 * MIB, 10 * KIB])
def test_a_cancelled_move_ends_within_two_seconds(bytes_per_second: int) -> None:
    """Once `stop` is set the move ends within two seconds, even on a device that would take minutes for one block."""
    plan = one_tensor("mirrored", (1 << 20, 256), (), ["d0"])
    backends: dict[str, Backend] = {
        "d0": SimulatedBackend("d0", 2 * GIB, failures=SimulatedFailures(bytes_per_second=bytes_per_second))
    }
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    stop = threading.Event()
    timer = threading.Timer(0.2, stop.set)

    class Zeros:
        size = 1 << 30

        def read_into(self, offset: int, target: memoryview) -> None:
            assert offset + target.nbytes <= self.size

        def close(self) -> None:
            """Nothing to give back."""

    timer.start()
    begin = time.monotonic()
    with pytest.raises(CancelledLoadError):
        move(layout.steps, [Zeros()], buffers, stop, threads=4)
    assert time.monotonic() - begin < 2
    timer.join()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ggufd-move")]
    free_all(buffers, backends)


def test_a_move_cancelled_before_it_begins_reads_nothing() -> None:
    """A `stop` that is already set means not a single read."""
    plan = one_tensor("mirrored", (1024, 1024), (), ["d0"])
    backends = backends_for(plan, "host")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    source = MemorySource(bytes(plan.tensors[0].nbytes))
    stop = threading.Event()
    stop.set()
    with pytest.raises(CancelledLoadError):
        move(layout.steps, [source], buffers, stop)
    assert [] == source.reads
    free_all(buffers, backends)


def test_nothing_to_copy_is_done_at_once() -> None:
    """A load whose every tensor is mapped has no steps: move answers 0 and needs no source."""
    assert move((), [], {}, threading.Event()) == 0


def test_an_error_in_the_callers_progress_surfaces() -> None:
    """What the caller's own callback raises comes out as it is, after the threads have ended."""
    plan = one_tensor("mirrored", (1024, 4096), (), ["d0"])
    backends = backends_for(plan, "host")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)

    def refuse(device: str, nbytes: int) -> None:
        raise LookupError(f"{device} {nbytes}")

    with pytest.raises(LookupError, match="d0"):
        move(
            layout.steps,
            [MemorySource(bytes(plan.tensors[0].nbytes))],
            buffers,
            threading.Event(),
            progress=refuse,
        )
    free_all(buffers, backends)
