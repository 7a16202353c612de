"""Reading a resident model: where its tensors lie, their bytes, their values, rows of its embedding.

Reads go to the devices, never to the file. Each of them holds the model for one piece at a time (`uses`), so a release
ends promptly, and a longer read then ends with ConflictError `not_resident`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.architectures import roles
from app.errors import DeviceError, FileError, NotFoundError, RequestError
from app.ggml import dequantise
from app.loading.conversion import VALUE_BYTES, converted, converted_bytes
from app.loading.readback import placements_of, stream, stream_slice
from app.loading.request import digest
from app.loading.rows import read_rows
from app.loading.run import LoadedModel
from app.modelfile.text import brief
from app.modelfile.types import ModelFile
from app.planner.plan import PlannedTensor
from app.planner.render import tensor_json
from app.residency.naming import renamed
from app.residency.uses import Uses
from app.units import MIB, human_bytes

MAX_ANSWER_BYTES: Final = 256 * MIB
"""How many bytes of embeddings one request may ask for: 4,096 rows of 16,384 values, the widest there are."""

Admit = Callable[[int], None]
"""Told the bytes of an answer before anything of it is made; may refuse it by an error of its own."""
Pieces = Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The bytes of one tensor, of one device's slice of it, or of its values as float32.

    `tag` names exactly these bytes, whichever load of the same file they come from. `pieces(start, stop)` gives bytes
    `[start, stop)` in pieces of about a megabyte; raises DeviceError, FileError, ConflictError `not_resident`.
    """

    nbytes: int
    tag: str
    pieces: Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """Rows of the embedding as float32 `[len(tokens), width]`, and how long reading and converting took, in seconds."""

    values: NDArray[np.float32]
    read_seconds: float
    dequantise_seconds: float


class ModelReader:
    """Reads the model of one handle. Thread-safe."""

    def __init__(self, loaded: LoadedModel, uses: Uses) -> None:
        self._loaded: Final = loaded
        self._uses: Final = uses
        self._plan: Final = loaded.prepared.plan

    @property
    def model(self) -> ModelFile:
        """The file the model came from, for its metadata."""
        return self._loaded.prepared.model

    @contextmanager
    def named_as_asked(self) -> Iterator[None]:
        """Name the model's files in errors as the client did."""
        try:
            yield
        except FileError as error:
            raise renamed(error, self._loaded.prepared.request.model, self.model) from error

    def tensors(
        self, role: str | None, layer: int | None, device: str | None, offset: int, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Facts of the tensors in the plan's order, and how many there are; those that fit the filters that are set.

        A tensor that is placed more than once is listed once per copy. Raises RequestError for a role or a device
        that no tensor of the model has.
        """
        found = [*range(len(self._plan.tensors))]
        if role is not None:
            found = self._among("role", role, {tensor.role for tensor in self._plan.tensors}, self._of_role)
        if device is not None:
            lying = {*self._among("device", device, {total.name for total in self._plan.totals}, self._on_device)}
            found = [index for index in found if index in lying]
        if layer is not None:
            found = [index for index in found if self._plan.tensors[index].layer == layer]
        return [self._facts(index) for index in found[offset : offset + limit]], len(found)

    def tensor(self, name: str) -> dict[str, Any]:
        """Everything about one tensor: each copy as the plan has it, and where its parts lie.

        Raises NotFoundError `tensor_not_found`.
        """
        copies = self._copies(name)
        first = self._plan.tensors[copies[0]]
        return {
            "name": first.name,
            "type": first.type.name,
            "shape": [*first.shape],
            "bytes": first.nbytes,
            "f32_bytes": converted_bytes(first.type, first.nbytes),
            "copies": [
                {**tensor_json(self._plan.tensors[index]), "copy": number, "placements": self._placements(index)}
                for number, index in enumerate(copies)
            ],
        }

    def content(
        self, name: str, *, device: str | None = None, copy: int | None = None, as_f32: bool = False
    ) -> Content:
        """What can be read of a tensor: all of it as the file has it, or what `device` holds, as it lies there.

        A tensor that is placed more than once is read from its copy number `copy`, or from the first (on `device`).
        Raises NotFoundError `tensor_not_found`, RequestError for a device or a copy that is not there, FileError
        `file_changed` where it is mapped and the file was written to, ConflictError `not_resident`.
        """
        index = self._pick(name, device, copy)
        self._require_current(index, device)
        kind = self._plan.tensors[index].type
        loaded = self._loaded
        identity: dict[str, Any] = {
            "files": [asdict(shard.identity) for shard in self.model.shards],
            "tensor": name,
        }
        if device is None:
            nbytes = self._plan.tensors[index].nbytes
            raw: Pieces = partial(stream, self._plan, loaded.layout, loaded.buffers, index)
        else:
            nbytes = sum(it.nbytes for it in placements_of(loaded.layout, index) if it.device == device)
            raw = partial(stream_slice, loaded.layout, loaded.buffers, index, device)
            identity |= {"plan": loaded.prepared.plan_id, "index": index, "device": device}
        if not as_f32:
            return Content(nbytes=nbytes, tag=digest(identity), pieces=partial(self._held, raw))
        return Content(
            nbytes=converted_bytes(kind, nbytes),
            tag=digest({**identity, "dtype": "f32"}),
            pieces=partial(self._held, partial(converted, kind, raw)),
        )

    def embeddings(
        self, tokens: Sequence[int], copy: int | None = None, admit: Admit = lambda _nbytes: None
    ) -> Embeddings:
        """The rows of the token embedding for `tokens`, in their order, bit for bit the dequantised file.

        Where the embedding is placed more than once, copy number `copy`, or else the first whose devices can be read.
        Raises NotFoundError `tensor_not_found` for a model without one, RequestError naming the token that is none,
        DeviceError, FileError, ConflictError `not_resident`, and what `admit` raises.
        """
        index = next((i for i in self._of_role(roles.TOKEN_EMBD.label)), None)
        if index is None:
            raise NotFoundError("the model has no token embedding", code="tensor_not_found")
        tensor = self._plan.tensors[index]
        rows = self._rows(tokens, tensor)
        copies = self._copies(tensor.name)
        if copy is not None:
            copies = [self._pick(tensor.name, None, copy)]
        admit(len(tokens) * tensor.shape[0] * VALUE_BYTES)
        started = time.perf_counter()
        raw = self._first_readable(copies, rows)
        read = time.perf_counter()
        values = dequantise(tensor.type, raw)
        return Embeddings(values=values, read_seconds=read - started, dequantise_seconds=time.perf_counter() - read)

    def _first_readable(self, copies: Sequence[int], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        loaded, failure = self._loaded, None
        for index in copies:
            try:
                with self._uses.held(), self.named_as_asked():
                    return read_rows(self._plan, loaded.layout, loaded.buffers, index, rows)
            except DeviceError as error:
                failure = failure or error
        assert failure is not None, "a tensor has a copy"
        raise failure

    def _rows(self, tokens: Sequence[int], tensor: PlannedTensor) -> NDArray[np.int64]:
        """The tokens as rows of the embedding."""
        count = tensor.shape[1] if len(tensor.shape) > 1 else 1
        nbytes = len(tokens) * tensor.shape[0] * VALUE_BYTES
        if nbytes > MAX_ANSWER_BYTES:
            at_most = MAX_ANSWER_BYTES // (tensor.shape[0] * VALUE_BYTES)
            raise RequestError(
                f"tokens: {len(tokens)} rows are {human_bytes(nbytes)}, and one answer has at most"
                f" {human_bytes(MAX_ANSWER_BYTES)}: ask for {at_most} at a time",
                field="tokens",
                limit_bytes=MAX_ANSWER_BYTES,
                max_tokens=at_most,
            )
        try:
            rows = np.array(tokens, np.int64).reshape(-1)
            wrong = np.flatnonzero((rows < 0) | (rows >= count))
            place = int(wrong[0]) if wrong.size else None
        except OverflowError:  # beyond 64 bits
            place = next(i for i, token in enumerate(tokens) if not 0 <= token < count)
        if place is not None:
            raise RequestError(
                f"tokens[{place}]: {str(tokens[place])[:40]} is no row of the embedding: 0 to {count - 1} are",
                field=f"tokens[{place}]",
                n_rows=count,
            )
        return rows

    def _held(self, pieces: Pieces, start: int, stop: int) -> Iterator[bytes]:
        """The pieces, each made while the model is held, none while a caller does something else with the last."""
        making, left = pieces(start, stop), stop - start
        while left > 0:
            with self._uses.held(), self.named_as_asked():
                piece = next(making)
            left -= len(piece)
            yield piece

    def _require_current(self, index: int, device: str | None) -> None:
        """What is asked of a tensor can be read, and is what was loaded, so that its tag is true if nothing is read."""
        with self._uses.held(), self.named_as_asked():
            for placement in placements_of(self._loaded.layout, index):
                if device in (None, placement.device):
                    self._loaded.buffers[placement.buffer].read_into(placement.offset, memoryview(bytearray()))

    def _facts(self, index: int) -> dict[str, Any]:
        tensor = self._plan.tensors[index]
        return {
            "name": tensor.name,
            "type": tensor.type.name,
            "shape": [*tensor.shape],
            "bytes": tensor.nbytes,
            "role": tensor.role,
            "layer": tensor.layer,
            "axis": tensor.axis,
            "placements": self._placements(index),
        }

    def _placements(self, index: int) -> list[dict[str, Any]]:
        """Where the parts of a tensor lie; `mapped` says that a part is the file itself."""
        specs = self._loaded.layout.buffers
        return [
            {
                "device": placement.device,
                "buffer": placement.buffer,
                "offset": placement.offset,
                "bytes": placement.nbytes,
                "mapped": specs[placement.buffer].mapped is not None,
            }
            for placement in placements_of(self._loaded.layout, index)
        ]

    def _of_role(self, role: str) -> list[int]:
        return [index for index, tensor in enumerate(self._plan.tensors) if tensor.role == role]

    def _on_device(self, device: str) -> list[int]:
        """Tensors with a part there, in order."""
        found = {placement.tensor for placement in self._loaded.layout.placements if placement.device == device}
        return sorted(index for index in found if index < len(self._plan.tensors))

    def _among(self, field: str, value: str, known: set[str], find: Callable[[str], list[int]]) -> Any:
        if value not in known:
            self._refuse(field, value, f"no tensor has it; there are {', '.join(sorted(known))}")
        return find(value)

    def _copies(self, name: str) -> list[int]:
        """Every placement of the tensor called `name`."""
        found = [index for index, tensor in enumerate(self._plan.tensors) if tensor.name == name]
        if not found:
            raise NotFoundError(f"the model has no tensor {brief(name)!r}", code="tensor_not_found")
        return found

    def _pick(self, name: str, device: str | None, copy: int | None) -> int:
        """The placement to read from."""
        copies = self._copies(name)
        if copy is not None:
            if not 0 <= copy < len(copies):
                self._refuse("copy", str(copy), f"copies of {name} are counted 0 to {len(copies) - 1}")
            copies = [copies[copy]]
        if device is None:
            return copies[0]
        holders: dict[str, int] = {}
        for index in copies:
            for placement in placements_of(self._loaded.layout, index):
                holders.setdefault(placement.device, index)
        if device not in holders:
            self._refuse("device", device, f"{name} lies on {', '.join(holders) or 'no device'}")
        return holders[device]

    def _refuse(self, field: str, value: str, why: str) -> NoReturn:
        raise RequestError(f"{field}: {brief(value)!r}: {why}", field=field)
