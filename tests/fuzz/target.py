"""What is done with a file nobody vouches for, up to its plan as JSON: the code that must bear any bytes."""

import contextlib
import os
from pathlib import Path
from typing import Final

from app.api.encoding import encode
from app.api.problems import problem
from app.architectures.registry import load_catalog
from app.devices.discovery import discover
from app.devices.simulated_spec import SimulatedSpec
from app.errors import GgufdError
from app.loading.context import ContextRequest
from app.loading.request import PlanRequest
from app.loading.run import World, prepare
from app.modelfile.reader import read_array, read_model_file
from app.modelfile.types import ArrayValue
from app.modelfile.vocabulary import duplicate_tokens
from app.planner.plan import SplitMode
from app.units import GIB, MIB

HOLE: Final = 4 * MIB
"""Bytes of nothing behind a file, so that a header may promise tensors without bringing them."""


class Target:
    """Takes inputs: a byte of wishes, and the file. The wishes' bits: a hole behind the file; tensor mode."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "model.gguf"
        simulated = [SimulatedSpec.parse(f"sim{index}:1GiB") for index in range(2)]
        backends = discover(GIB, (), simulated)
        self._world = World(catalog=load_catalog(), backends=backends, roots=(folder,))

    def __call__(self, data: bytes) -> None:
        """Whatever the bytes are, values or typed errors come out, and both can be written as JSON."""
        wishes = data[0] if data else 0
        with self._path.open("wb") as file:
            file.write(data[1:])
            if wishes & 1:
                os.truncate(file.fileno(), len(data) - 1 + HOLE)
        mode = SplitMode.TENSOR if wishes & 2 else SplitMode.LAYER
        try:
            request = PlanRequest(model=str(self._path), split_mode=mode, context=ContextRequest())
            encode(prepare(request, self._world).as_json())
        except GgufdError as error:
            encode(problem(error))
        with contextlib.suppress(GgufdError):
            self._look_inside()

    def _look_inside(self) -> None:
        model = read_model_file(self._path)
        duplicate_tokens(model)
        for key, entry in model.metadata.items():
            if isinstance(entry.value, ArrayValue):
                assert min(entry.value.count, 100) == len(read_array(model, key, 0, 100))
                read_array(model, key, entry.value.count - 1)
        for tensor in model.tensors:
            shard = model.shards[tensor.shard]
            assert shard.data_start <= tensor.offset <= tensor.offset + tensor.nbytes <= shard.identity.size
