import os
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Literal

import pytest

from app.devices.backend import Backend
from app.devices.host import HostBackend
from app.ggml import BY_NAME, GgmlType
from app.loading.layout import lay_out
from app.loading.transfer import DEFAULT_CHUNK_BYTES, DEFAULT_THREADS, move
from app.modelfile.reader import read_model_file
from app.modelfile.source import FileSource, open_source
from app.modelfile.types import ModelFile
from app.modelfile.writer import write_gguf
from app.planner.plan import PlannedTensor, SplitPlan
from app.units import GIB, MIB
from tests.loading.plans import decide, make_buffers, plan_device, plan_of, planned

F16 = BY_NAME["f16"]
N_LAYERS = 8
ROUNDS = 7


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFile]:
    """About 512 MiB in the shapes of a small transformer, in the page cache."""
    specs: list[tuple[str, GgmlType, tuple[int, ...], int]] = [("token_embd.weight", F16, (2048, 16384), 1)]
    for layer in range(N_LAYERS):
        shapes = (
            ("attn_norm", (2048,)),
            ("attn_q", (2048, 2048)),
            ("attn_k", (2048, 512)),
            ("attn_v", (2048, 512)),
            ("attn_output", (2048, 2048)),
            ("ffn_norm", (2048,)),
            ("ffn_gate", (2048, 3072)),
            ("ffn_up", (2048, 3072)),
            ("ffn_down", (3072, 2048)),
        )
        specs += [(f"blk.{layer}.{name}.weight", F16, shape, layer) for name, shape in shapes]
    path = tmp_path_factory.mktemp("bench") / "model.gguf"
    write_gguf(path, {"general.architecture": "llama"}, specs)
    yield read_model_file(path)
    path.unlink()


def plan_for(model: ModelFile, n_devices: int) -> SplitPlan:
    """As tensor mode cuts such a model: projections by output rows or by input columns, norms mirrored."""
    names = [f"host{number}" for number in range(n_devices)]

    def place(name: str) -> PlannedTensor:
        tensor = model.by_name[name]
        if n_devices == 1 or "embd" in name:
            return planned(name, tensor.shape, kind=F16, device=names[0], devices=n_devices, source=tensor)
        if len(tensor.shape) == 1:
            return planned(name, tensor.shape, kind=F16, axis="mirrored", devices=n_devices, source=tensor)
        axis: Literal[0, 1] = 0 if "output" in name or "down" in name else 1
        segments = [((tensor.shape[axis] // n_devices,) * n_devices, 1)]
        return planned(name, tensor.shape, kind=F16, axis=axis, segments=segments, devices=n_devices, source=tensor)

    tensors = [place(tensor.name) for tensor in model.tensors]
    return plan_of(tensors, [plan_device(name, kind="host") for name in names])


def plain_reads(source: FileSource, target: memoryview, start: int, threads: int) -> None:
    """The ceiling: the same bytes of the file, in order, to memory that is there, with nothing to decide."""
    chunks = iter(range(start, source.size, DEFAULT_CHUNK_BYTES))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                offset = next(chunks, None)
            if offset is None:
                return
            end = min(offset + DEFAULT_CHUNK_BYTES, source.size)
            while offset < end:
                offset += os.preadv(descriptor, [target[offset - start : end - start]], offset)

    descriptor = os.open(source.path, os.O_RDONLY)
    try:
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        os.close(descriptor)


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


@pytest.mark.bench
@pytest.mark.parametrize(("n_devices", "floor"), [(1, 0.7), (2, 0.5)])
def test_moving_is_nearly_as_fast_as_reading(
    model: ModelFile, n_devices: int, floor: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole tensors, and slices for two devices, move at a large part of the speed of plain reads of the same bytes."""
    plan = plan_for(model, n_devices)
    backends: dict[str, Backend] = {total.name: HostBackend(total.name, 2 * GIB) for total in plan.totals}
    facts = {name: backend.facts() for name, backend in backends.items()}
    layout = lay_out(plan, decide(plan, facts), facts)
    buffers = make_buffers(layout, backends)
    start = model.shards[0].data_start
    whole = HostBackend("ceiling", 2 * GIB).allocate(model.shards[0].identity.size - start, 1)
    view = whole.view(0, whole.nbytes)
    assert view is not None
    ratios, speeds = [], []
    with open_source(model.shards[0]) as source:

        def product() -> None:
            move(layout.steps, [source], buffers, threading.Event())

        def ceiling() -> None:
            plain_reads(source, view, start, DEFAULT_THREADS)

        product()
        ceiling()
        for number in range(ROUNDS):
            order = (product, ceiling) if number % 2 else (ceiling, product)
            seconds = {action: timed(action) for action in order}
            ratios.append(seconds[ceiling] / seconds[product])
            speeds.append(layout.read_bytes / seconds[product] / GIB)
    view.release()
    whole.free()
    for buffer in buffers.values():
        buffer.free()
    with capsys.disabled():
        size = layout.read_bytes // MIB
        print(
            f"\n{size} MiB to {n_devices} host device(s): {median(speeds):.1f} GiB/s, "
            f"{median(ratios):.2f} of plain reads (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )
    assert median(ratios) >= floor
