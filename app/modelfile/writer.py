"""Writing GGUF files: small models that ggufd makes itself, and every file the tests need."""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from app.ggml import GgmlType
from app.modelfile.header import ALIGNMENT_KEY, CODES, DEFAULT_ALIGNMENT
from app.modelfile.types import Scalar, ValueType
from app.units import MIB, align_up

_CHUNK: Final = MIB
# Every tensor type's scales are finite if no byte exceeds this: exponents are in the topmost bits of some byte.
_FINITE: Final = 124
# Floats get an exponent well below one instead, so that sums over them stay finite too: byte → (mask, bits to set).
_SMALL: Final[Mapping[str, tuple[tuple[int, int, int], ...]]] = {
    "f32": ((3, 0x81, 0x3C),),
    "f16": ((1, 0x83, 0x2C),),
    "bf16": ((1, 0x81, 0x3C),),
    "f64": ((7, 0x80, 0x3F), (6, 0x7F, 0x80)),
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its type spelled out. With `array`, `value` is a sequence of elements of `type`."""

    type: ValueType
    value: Scalar | Sequence[Scalar]
    array: bool = False


MetadataValue = Typed | Scalar | Sequence[Scalar]
"""What a key may be given: plain `str`, `bool`, `int` (u32, or i32 if negative), `float` (f32), sequences of these
(integers as i32), or `Typed`."""

TensorData = bytes | bytearray | memoryview | int | None
"""A tensor's bytes, or a seed to fill it with finite pseudo-random numbers, or None for a hole (zeros)."""


def seeded_chunks(kind: GgmlType, nbytes: int, seed: int) -> Iterator[bytes]:
    """`nbytes` pseudo-random bytes that are finite numbers in the tensor type `kind`; the same for the same seed."""
    rng = np.random.Generator(np.random.PCG64(seed))
    for start in range(0, nbytes, _CHUNK):
        chunk = np.frombuffer(rng.bytes(min(_CHUNK, nbytes - start)), np.uint8).copy()
        fields = _SMALL.get(kind.name)
        if fields is None:
            chunk %= _FINITE
        else:
            for byte, mask, bits in fields:
                column = chunk[byte :: kind.type_size]
                column &= mask
                column |= bits
        yield chunk.tobytes()


def write_gguf(
    path: Path,
    metadata: Mapping[str, MetadataValue],
    tensors: Sequence[tuple[str, GgmlType, Sequence[int], TensorData]],
    *,
    version: int = 3,
    alignment: int = DEFAULT_ALIGNMENT,
) -> int:
    """Write a GGUF file; answers its size in bytes. Shapes are in GGUF order (ne0 first).

    `general.alignment` is written if `alignment` is not the default. Holes cost no disk. ValueError if a tensor's
    bytes do not have the length its type and shape say: the caller made them.
    """
    entries = dict(metadata)
    if alignment != DEFAULT_ALIGNMENT:
        entries[ALIGNMENT_KEY] = Typed(ValueType.U32, alignment)
    head = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)))
    for key, value in entries.items():
        head += _string(key) + _value(value)
    offset, places = 0, []
    for name, kind, shape, data in tensors:
        nbytes = kind.row_bytes(shape[0] if shape else 1)
        for extent in shape[1:]:
            nbytes *= extent
        if data is not None and not isinstance(data, int) and len(data) != nbytes:
            raise ValueError(f"tensor {name} has {nbytes} bytes, {len(data)} were given")
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind.id, offset)
        places.append((offset, nbytes, kind, data))
        offset += align_up(nbytes, alignment)
    data_start = align_up(len(head), alignment) if tensors else len(head)
    with path.open("wb") as file:
        file.write(head)
        for at, nbytes, kind, data in places:
            file.seek(data_start + at)
            _write_data(file, kind, nbytes, data)
        size = data_start + offset
        os.ftruncate(file.fileno(), size)
    return size


def _write_data(file: BinaryIO, kind: GgmlType, nbytes: int, data: TensorData) -> None:
    if isinstance(data, int):
        for chunk in seeded_chunks(kind, nbytes, data):
            file.write(chunk)
    elif data is not None:
        file.write(data)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: MetadataValue) -> bytes:
    typed = value if isinstance(value, Typed) else _infer(value)
    if not typed.array:
        return struct.pack("<I", typed.type) + _elements(typed.type, [typed.value])
    assert isinstance(typed.value, Sequence)
    return struct.pack("<IIQ", ValueType.ARRAY, typed.type, len(typed.value)) + _elements(typed.type, typed.value)


def _elements(kind: ValueType, values: Sequence[object]) -> bytes:
    if kind is ValueType.STRING:
        return b"".join(_string(str(value)) for value in values)
    return struct.pack(f"<{len(values)}{CODES[kind]}", *values)


def _infer(value: Scalar | Sequence[Scalar]) -> Typed:
    if isinstance(value, str):
        return Typed(ValueType.STRING, value)
    if isinstance(value, bool):
        return Typed(ValueType.BOOL, value)
    if isinstance(value, int):
        return Typed(ValueType.U32 if value >= 0 else ValueType.I32, value)
    if isinstance(value, float):
        return Typed(ValueType.F32, value)
    first = _infer(value[0]).type if value else ValueType.I32
    return Typed(ValueType.I32 if first is ValueType.U32 else first, value, array=True)
