import errno
import os
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from app.ggml import BY_NAME
from app.loading.readback import join
from app.loading.transfer import move
from app.modelfile.reader import read_model_file
from app.modelfile.source import open_source
from app.modelfile.types import ModelFile
from app.modelfile.writer import write_gguf
from app.planner.plan import Axis
from tests.loading.moving import backends_for, free_all, layout_for
from tests.loading.plans import (
    make_buffers,
    plan_device,
    plan_of,
    planned,
)

F32 = BY_NAME["f32"]


def real_file(folder: Path, extra: int) -> ModelFile:
    """A model file of a multiple of 4096 bytes, plus `extra`; its last tensor ends with the file."""
    path = folder / "m.gguf"
    shapes = [(256, 300), (256, 301), (64,), (256, 1)]
    specs = [(f"t{n}", BY_NAME["f32"], shape, n) for n, shape in enumerate(shapes)]
    tail = 5000
    for _ in range(2):  # the second time, with a last tensor that makes the size come out
        size = write_gguf(path, {"general.architecture": "llama"}, [*specs, ("tail", BY_NAME["i8"], (tail,), 9)])
        unpadded = size - (-tail % 32)
        tail += (extra - unpadded) % 4096
    os.truncate(path, unpadded)
    assert unpadded % 4096 == extra % 4096
    return read_model_file(path)


Preadv = Callable[[int, Sequence[memoryview], int], int]


def stutter() -> Preadv:
    """preadv that returns at most 4,093 bytes and is interrupted every seventh time."""
    calls = count(1)

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if next(calls) % 7 == 0:
            raise InterruptedError
        return os.preadv(fd, [buffers[0][:4093]], offset)

    return preadv


def refuse_once() -> Preadv:
    """preadv whose second read fails as direct I/O does on a file system that only pretends."""
    calls = count(1)

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if next(calls) == 2:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.preadv(fd, buffers, offset)

    return preadv


@pytest.mark.parametrize("extra", [0, 1, -1])
@pytest.mark.parametrize(
    ("direct", "make_preadv"),
    [(False, stutter), (True, lambda: os.preadv), (True, refuse_once), (True, stutter)],
    ids=["short reads", "direct", "direct refused", "direct and short reads"],
)
def test_every_way_of_reading_brings_the_same_bytes(
    tmp_path: Path, direct: bool, make_preadv: Callable[[], Preadv], extra: int
) -> None:
    """Direct or not, refused halfway, in short interrupted reads, whatever the size: the bytes are the file's."""
    model = real_file(tmp_path, extra)
    tensors = []
    for tensor in model.tensors:
        cut = len(tensor.shape) == 2
        segments = [((96, 160), 1)] if cut else []
        axis: Axis = 0 if cut else "mirrored"
        tensors.append(
            planned(tensor.name, tensor.shape, kind=tensor.type, axis=axis, segments=segments, devices=2, source=tensor)
        )
    plan = plan_of(tensors, [plan_device("d0"), plan_device("d1")])
    backends = backends_for(plan, "mixed")
    layout = layout_for(plan, backends)
    buffers = make_buffers(layout, backends)
    with open_source(model.shards[0], direct=direct, preadv=make_preadv()) as source:
        move(layout.steps, [source], buffers, threading.Event(), threads=2, chunk_bytes=100_000)
    content = model.path.read_bytes()
    for index, tensor in enumerate(model.tensors):
        assert content[tensor.offset : tensor.offset + tensor.nbytes] == join(plan, layout, buffers, index)
    free_all(buffers, backends)
