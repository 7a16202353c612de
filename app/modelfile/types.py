"""The values that describe a GGUF file: nothing here reads, opens or trusts anything."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Final

from app.ggml import GgmlType


class ValueType(IntEnum):
    """GGUF's metadata value types (`gguf_type`)."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


SCALAR_BYTES: Final[Mapping[ValueType, int]] = {
    ValueType.U8: 1,
    ValueType.I8: 1,
    ValueType.U16: 2,
    ValueType.I16: 2,
    ValueType.U32: 4,
    ValueType.I32: 4,
    ValueType.F32: 4,
    ValueType.BOOL: 1,
    ValueType.U64: 8,
    ValueType.I64: 8,
    ValueType.F64: 8,
}

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayValue:
    """A metadata array: its element type, length and place in the file.

    `elements` holds the values of short numeric arrays (per-layer keys); it is None for strings and long arrays, which
    were walked and checked but not built: `modelfile.reader.read_array` builds them when asked.
    `offset` and `end` delimit the elements in bytes from the start of the (first) file.
    """

    element_type: ValueType
    count: int
    offset: int
    end: int
    elements: tuple[Scalar, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """One metadata entry."""

    key: str
    type: ValueType
    value: Scalar | ArrayValue


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor as the file describes it.

    `shape` is in GGUF order (ne0, the contiguous dimension, first), without trailing ones beyond the first dimension,
    at most four long. `offset` is absolute, in bytes from the start of the shard's file; `nbytes` is exact.
    """

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    shard: int
    offset: int
    nbytes: int

    @property
    def n_elements(self) -> int:
        """The product of the shape."""
        product = 1
        for extent in self.shape:
            product *= extent
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """What must not have changed when the file is opened again: device, inode, size in bytes, mtime and ctime in ns."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of a model: its resolved path, identity, and where its tensor data starts (bytes)."""

    path: Path
    identity: FileIdentity
    data_start: int


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A GGUF model that passed validation, over all its shards. Holds no descriptor and no mapping.

    `path` is the file (or folder) that was asked for; `shards[0]` carries the metadata. `tensors` are in file order,
    shard by shard. `warnings` are sentences about what was accepted but looks odd.
    """

    path: Path
    version: int
    alignment: int
    metadata: Mapping[str, KeyValue]
    tensors: tuple[TensorInfo, ...]
    shards: tuple[Shard, ...]
    warnings: tuple[str, ...] = field(default=())

    @cached_property
    def by_name(self) -> Mapping[str, TensorInfo]:
        """The tensors by name (names are unique over all shards)."""
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def n_bytes(self) -> int:
        """Exact bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def n_params(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors)
