import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.devices.backend import Backend
from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend
from app.errors import DeviceError
from app.ggml import BY_NAME, dequantise
from app.loading.layout import lay_out
from app.loading.rows import read_rows
from app.loading.transfer import move
from app.modelfile.types import TensorInfo
from app.planner.plan import SplitPlan
from app.units import GIB
from tests.loading.plans import Example, MemorySource, decide, examples, make_buffers, plan_device, plan_of, planned
from tests.test_ggml import RECORDED

ROWS, WIDTH = 8, 512


def _read(
    plan: SplitPlan, shards: Sequence[bytes], backends: dict[str, Backend], tensor: int, rows: Sequence[int]
) -> NDArray[np.uint8]:
    """Rows of a tensor after its plan was carried out."""
    facts = {name: backend.facts() for name, backend in backends.items()}
    layout = lay_out(plan, decide(plan, facts), facts)
    buffers = make_buffers(layout, backends)
    move(layout.steps, [MemorySource(shard) for shard in shards], buffers, threading.Event(), threads=1)
    try:
        return read_rows(plan, layout, buffers, tensor, np.array(rows, np.int64))
    finally:
        for buffer in buffers.values():
            buffer.free()


@given(example=examples(max_tensors=2), kinds=st.lists(st.booleans(), min_size=5, max_size=5), data=st.data())
def test_any_rows_of_any_tensor(example: Example, kinds: list[bool], data: st.DataObject) -> None:
    """Whatever way a tensor is placed, its rows come back as the file has them, in the order asked for, repeats too."""
    plan = example.plan
    backends: dict[str, Backend] = {
        total.name: HostBackend(total.name, GIB) if real else SimulatedBackend(total.name, GIB, keep_bytes=True)
        for total, real in zip(plan.totals, kinds, strict=False)
    }
    index = data.draw(st.integers(0, len(plan.tensors) - 1))
    tensor = plan.tensors[index]
    expected = np.frombuffer(example.tensor_bytes(index), np.uint8).reshape(-1, tensor.type.row_bytes(tensor.shape[0]))
    rows = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=12)) if len(expected) else []
    assert np.array_equal(expected[rows], _read(plan, example.shards, backends, index, rows))


@pytest.mark.parametrize("devices", ["host", "simulated"])
@pytest.mark.parametrize("axis", [None, "mirrored", 0, 1])
@pytest.mark.parametrize("name", RECORDED)
def test_rows_of_every_type_are_the_references(
    name: str, axis: int | str | None, devices: str, oracle_dir: Path
) -> None:
    """Embedding rows, whole or split, dequantised, are bit for bit what the reference computes, in every type."""
    kind = BY_NAME[name]
    raw = (oracle_dir / "dequant" / f"{name}.bin").read_bytes()
    expected = np.fromfile(oracle_dir / "dequant" / f"{name}.f32", np.uint32).reshape(ROWS, WIDTH)
    first = WIDTH - max(kind.block_size, 128)
    segments = {0: [((first, WIDTH - first), 1)], 1: [((1, 1), 2), ((0, 1), 2), ((2, 0), 1)]}
    tensor = planned(
        "token_embd.weight",
        (WIDTH, ROWS),
        kind=kind,
        axis=axis,  # type: ignore[arg-type]
        segments=segments.get(axis, []) if isinstance(axis, int) else [],
        devices=2,
        device="a" if axis is None else None,
        source=TensorInfo(name="token_embd.weight", type=kind, shape=(WIDTH, ROWS), shard=0, offset=0, nbytes=len(raw)),
    )
    plan = plan_of([tensor], [plan_device("a"), plan_device("b")])
    backends: dict[str, Backend] = {
        device: HostBackend(device, GIB) if devices == "host" else SimulatedBackend(device, GIB, keep_bytes=True)
        for device in ("a", "b")
    }
    rows = [7, 0, 3, 3, 1, 6, 2, 5, 4]
    values = dequantise(kind, _read(plan, [raw], backends, 0, rows))
    assert np.array_equal(expected[rows], values.view(np.uint32))


def test_a_device_that_keeps_no_bytes_says_so() -> None:
    """Rows that lie on a device with nothing but a checksum are a DeviceError that tells why."""
    source = TensorInfo(name="t", type=BY_NAME["f32"], shape=(4, 4), shard=0, offset=0, nbytes=64)
    plan = plan_of([planned("t", (4, 4), device="a", source=source)], [plan_device("a")])
    with pytest.raises(DeviceError, match="checksum"):
        _read(plan, [bytes(64)], {"a": SimulatedBackend("a", GIB)}, 0, [1])
