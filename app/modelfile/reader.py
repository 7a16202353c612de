"""The door to everything in a model's files: a validated ModelFile, and its long arrays when they are asked for."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.errors import MetadataError
from app.modelfile.cursor import Cursor
from app.modelfile.header import CODES
from app.modelfile.limits import ReadLimits
from app.modelfile.opening import reopen
from app.modelfile.shards import read_set
from app.modelfile.text import brief, decode, shown
from app.modelfile.types import SCALAR_BYTES, ArrayValue, ModelFile, Scalar, ValueType

_DEFAULT_LIMITS = ReadLimits()


def read_model_file(path: Path, limits: ReadLimits = _DEFAULT_LIMITS, roots: Sequence[Path] | None = None) -> ModelFile:
    """Read and validate the model at `path`: a GGUF file, any shard of a split one, or a folder that holds one.

    No tensor data is read. With `roots`, every file's descriptor must lie under one of them.
    Raises NotFoundError (`model_not_found`: missing, or outside the roots), AccessError, FileError, and MetadataError
    for a split model's missing keys.
    """
    return read_set(path, limits, roots)


def read_array(
    model: ModelFile, key: str, start: int = 0, stop: int | None = None, most_bytes: int | None = None
) -> list[Scalar]:
    """Elements `start` to `stop` (exclusive; clipped to the array) of a metadata array, read from the file again.

    The array passed the limits when the header was read; how much of it is built is the caller's to bound. Strings are
    walked up to `start`, never built; the one with which they reach `most_bytes` is the last. Bytes that are not UTF-8
    come escaped. Raises MetadataError (`missing_key`, `wrong_key_type`), FileError `file_changed` if the file is no
    longer the one that was read.
    """
    shard = model.shards[0]
    entry = model.metadata.get(key)
    if entry is None:
        raise MetadataError(
            f"{shown(shard.path)}: metadata '{brief(key)}': is not there",
            code="missing_key",
            file=shown(shard.path),
            key=key,
        )
    array = entry.value
    if not isinstance(array, ArrayValue):
        raise MetadataError(
            f"{shown(shard.path)}: metadata '{brief(key)}': is {entry.type.name.lower()}, expected an array",
            code="wrong_key_type",
            file=shown(shard.path),
            key=key,
            expected="array",
            found=entry.type.name.lower(),
        )
    stop = array.count if stop is None else min(max(stop, 0), array.count)
    start = min(max(start, 0), stop)
    if array.elements is not None:
        return list(array.elements[start:stop])
    if array.element_type is ValueType.STRING:
        return [decode(raw) for raw in read_strings(model, array, start, stop, most_bytes)]
    if start == stop:
        return []
    width = SCALAR_BYTES[array.element_type]
    with _at_elements(model, array) as cursor:
        cursor.skip(start * width, "")
        raw = cursor.take((stop - start) * width, ": elements")
        return list(struct.unpack(f"<{stop - start}{CODES[array.element_type]}", raw))


def read_strings(
    model: ModelFile, array: ArrayValue, start: int, stop: int, most_bytes: int | None = None
) -> list[bytes]:
    """Elements `start` to `stop` of an array of strings, as the bytes they are; bounds are the caller's to keep.

    The string with which they reach `most_bytes` (None: any number) is the last.
    Raises FileError `file_changed` if the file is no longer the one that was read.
    """
    if start == stop:
        return []
    with _at_elements(model, array) as cursor:
        cursor.walk_strings(start)
        if most_bytes is None:
            return cursor.strings(stop - start)
        found: list[bytes] = []
        while len(found) < stop - start and most_bytes > 0:
            found += cursor.strings(1)
            most_bytes -= len(found[-1])
        return found


@contextmanager
def _at_elements(model: ModelFile, array: ArrayValue) -> Iterator[Cursor]:
    """A cursor at an array's first element. What passed the limits when the header was read, passes now."""
    shard = model.shards[0]
    with reopen(shard) as file:
        limits = ReadLimits(header_bytes=array.end, string_bytes=array.end)
        cursor = Cursor(file.read, shard.identity.size, shown(shard.path), limits)
        cursor.subject = f"metadata array at {array.offset}"
        cursor.skip(array.offset, "")
        yield cursor
