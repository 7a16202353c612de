import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.devices.backend import Backend
from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend
from app.errors import DeviceError, FileError
from app.ggml import BY_NAME
from app.loading.layout import lay_out
from app.loading.negotiation import LoadMode
from app.loading.readback import join, placements_of, read_slice, stream
from app.loading.transfer import move
from app.modelfile.reader import read_model_file
from app.modelfile.source import open_source
from app.modelfile.writer import write_gguf
from app.units import GIB, MIB
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


@given(example=examples(max_tensors=2), data=st.data())
def test_any_range_of_a_joined_tensor(example: Example, data: st.DataObject) -> None:
    """Streaming bytes [start, stop) of a tensor gives exactly the file's, wherever its slices lie."""
    plan = example.plan
    backends: dict[str, Backend] = {
        total.name: SimulatedBackend(total.name, GIB, keep_bytes=True) for total in plan.totals
    }
    facts = {name: backend.facts() for name, backend in backends.items()}
    layout = lay_out(plan, decide(plan, facts), facts)
    buffers = make_buffers(layout, backends)
    sources = [MemorySource(shard) for shard in example.shards]
    move(layout.steps, sources, buffers, threading.Event(), threads=1)
    index = data.draw(st.integers(0, len(plan.tensors) - 1))
    expected = example.tensor_bytes(index)
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.one_of(st.none(), st.integers(start, len(expected) + 9)))
    assert expected[start:stop] == b"".join(stream(plan, layout, buffers, index, start, stop))


def test_streaming_holds_a_block_at_a_time() -> None:
    """A large tensor cut along its rows streams in pieces of at most a megabyte."""
    segments = [((300, 724), 1)]
    plan = plan_of(
        [planned("w", (1024, 2048), axis=0, segments=segments, devices=2)],
        [plan_device("d0"), plan_device("d1")],
    )
    backends: dict[str, Backend] = {f"d{n}": HostBackend(f"d{n}", GIB) for n in range(2)}
    facts = {name: backend.facts() for name, backend in backends.items()}
    layout = lay_out(plan, decide(plan, facts), facts)
    buffers = make_buffers(layout, backends)
    pieces = [len(piece) for piece in stream(plan, layout, buffers, 0)]
    assert (8 * MIB, MIB) == (sum(pieces), max(pieces))
    for buffer in buffers.values():
        buffer.free()


def test_a_mapped_model_reads_back_like_a_copied_one(tmp_path: Path) -> None:
    """Under mmap whole tensors come from the mapping and slices from memory; both join to the file's bytes."""
    path = tmp_path / "m.gguf"
    f16 = BY_NAME["f16"]
    write_gguf(path, {"general.architecture": "llama"}, [(f"t{n}", f16, (64, 48), n) for n in range(4)])
    model = read_model_file(path)
    tensors = [
        planned("t0", (64, 48), kind=f16, device="host", devices=2, source=model.by_name["t0"]),
        planned("t1", (64, 48), kind=f16, axis=1, segments=[((16, 32), 1)], devices=2, source=model.by_name["t1"]),
        planned("t2", (64, 48), kind=f16, axis="mirrored", devices=2, source=model.by_name["t2"]),
        planned("t3", (64, 48), kind=f16, axis=0, segments=[((0, 64), 1)], devices=2, source=model.by_name["t3"]),
    ]
    plan = plan_of(tensors, [plan_device("d0"), plan_device("d1")], host=plan_device("host", kind="host"))
    backends: dict[str, Backend] = {
        "host": HostBackend("host", GIB),
        "d0": HostBackend("d0", GIB),
        "d1": SimulatedBackend("d1", GIB, keep_bytes=True),
    }
    facts = {name: backend.facts() for name, backend in backends.items()}
    layout = lay_out(plan, decide(plan, facts, LoadMode.MMAP), facts)
    with open_source(model.shards[0]) as source:
        ranges = [source.map_range(it.mapped.offset, it.mapped.nbytes) for it in layout.buffers if it.mapped]
        buffers = make_buffers(layout, backends, ranges)
        move(layout.steps, [source], buffers, threading.Event())
    assert ["host", "d1"] == [spec.device for spec in layout.buffers if spec.mapped]
    content = path.read_bytes()
    for index, tensor in enumerate(tensors):
        origin = tensor.source
        assert origin is not None
        expected = content[origin.offset : origin.offset + origin.nbytes]
        assert expected == join(plan, layout, buffers, index)
        if tensor.axis is not None:
            for slot, device in enumerate(plan.devices):
                assert expected_slice(tensor, expected, slot) == read_slice(layout, buffers, index, device.name)
    with path.open("r+b") as file:
        file.truncate(model.shards[0].data_start)
    with pytest.raises(FileError):
        join(plan, layout, buffers, 0)
    assert layout.total_bytes == sum(buffer.free() for buffer in buffers.values())


def test_what_is_not_kept_cannot_be_read() -> None:
    """Reading from a device that keeps a checksum is a DeviceError that says so; an absent slice is empty."""
    plan = plan_of([planned("w", (64,), axis="mirrored", devices=1)], [plan_device("d0")])
    backends: dict[str, Backend] = {"d0": SimulatedBackend("d0", GIB)}
    facts = {name: backend.facts() for name, backend in backends.items()}
    layout = lay_out(plan, decide(plan, facts), facts)
    buffers = make_buffers(layout, backends)
    assert ["d0"] == [placement.device for placement in placements_of(layout, 0)]
    with pytest.raises(DeviceError, match="keeps a checksum"):
        join(plan, layout, buffers, 0)
    assert b"" == read_slice(layout, buffers, 0, "elsewhere")
