"""Parsing one file's header: magic, version, metadata, tensor records. Nothing is believed before it is compared."""

import struct
from dataclasses import dataclass
from typing import Final

from app.errors import FileError
from app.ggml import TYPES
from app.modelfile.cursor import Cursor
from app.modelfile.limits import ReadLimits
from app.modelfile.opening import OpenedFile
from app.modelfile.text import brief, decode, shown
from app.modelfile.types import SCALAR_BYTES, ArrayValue, KeyValue, Scalar, TensorInfo, ValueType
from app.modelfile.validation import validate
from app.units import align_up

ALIGNMENT_KEY: Final = "general.alignment"
DEFAULT_ALIGNMENT: Final = 32
MAX_NAME_BYTES: Final = 63
MAX_DIMS: Final = 4
SHORT_ARRAY: Final = 4096
"""Numeric arrays up to this many elements are built at once; no per-layer key comes near it."""

CODES: Final = {
    ValueType.U8: "B",
    ValueType.I8: "b",
    ValueType.U16: "H",
    ValueType.I16: "h",
    ValueType.U32: "I",
    ValueType.I32: "i",
    ValueType.F32: "f",
    ValueType.BOOL: "?",
    ValueType.U64: "Q",
    ValueType.I64: "q",
    ValueType.F64: "d",
}

_MAGIC: Final = b"GGUF"
_FIXED_BYTES: Final = 24
_SMALLEST_KEY: Final = 8 + 1 + 4 + 1
_SMALLEST_TENSOR: Final = 8 + 1 + 4 + 4 + 8
_INT64_MAX: Final = 2**63 - 1
_SIZE_MAX: Final = 2**64 - 1
_HINTS: Final = (
    (b"vers", "this is how a Git LFS pointer starts: fetch the real file"),
    (b"tjgg", "this is a GGJT file, older than GGUF: convert it"),
    (b"fmgg", "this is a GGMF file, older than GGUF: convert it"),
    (b"lmgg", "this is a GGML file, older than GGUF: convert it"),
    (b"FUGG", "the bytes are in reverse order"),
    (b"<", "this looks like an HTML page: the download got an error page"),
    (b"PK\x03\x04", "this is a ZIP archive, as PyTorch writes them"),
    (b"\x00\x00\x00\x00", "these are zeros: the download may be unfinished"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """One file's header, validated. `data_start` in bytes; the tensors carry the shard index they were given."""

    version: int
    alignment: int
    metadata: dict[str, KeyValue]
    tensors: tuple[TensorInfo, ...]
    data_start: int


def read_header(file: OpenedFile, limits: ReadLimits, shard: int = 0) -> Header:
    """Parse and validate the header of an open file. Raises FileError; never anything else for whatever bytes."""
    name, size = shown(file.asked), file.identity.size
    cursor = Cursor(file.read, size, name, limits)
    version = _read_version(cursor)
    n_tensors = cursor.count(" n_tensors", _SMALLEST_TENSOR)
    n_keys = cursor.count(" n_kv", _SMALLEST_KEY)
    if n_tensors > limits.n_tensors:
        cursor.over("n_tensors", limits.n_tensors, n_tensors, " n_tensors")
    if n_keys > limits.n_keys:
        cursor.over("n_keys", limits.n_keys, n_keys, " n_kv")
    metadata = _Metadata(cursor).read(n_keys)
    alignment = _alignment(metadata, name)
    raw = _read_tensors(cursor, n_tensors)
    # Without tensors there is no data section: such a file may end right behind its metadata.
    data_start = align_up(cursor.position, alignment) if raw else cursor.position
    tensors = tuple(
        TensorInfo(name=t_name, type=TYPES[kind], shape=shape, shard=shard, offset=data_start + offset, nbytes=nbytes)
        for t_name, kind, shape, offset, nbytes in raw
    )
    validate(tensors, data_start, size, alignment, name)
    file.require_unchanged()
    return Header(version=version, alignment=alignment, metadata=metadata, tensors=tensors, data_start=data_start)


def _read_version(cursor: Cursor) -> int:
    if cursor.size == 0:
        raise FileError(f"{cursor.file}: the file is empty", code="empty_file", file=cursor.file, expected=24, found=0)
    magic = cursor.take(min(4, cursor.size), " magic")
    if not _MAGIC.startswith(magic):
        hint = next((f"; {text}" for start, text in _HINTS if magic.startswith(start)), "")
        found = magic.decode("ascii", "backslashreplace")
        cursor.fail("bad_magic", f" magic: found {found!r}, expected 'GGUF'{hint}", expected="GGUF", found=found)
    if cursor.size < _FIXED_BYTES:
        cursor.fail(
            "truncated",
            f": the file has {cursor.size} bytes, a GGUF header at least {_FIXED_BYTES}",
            expected=_FIXED_BYTES,
            found=cursor.size,
        )
    version = cursor.u32(" version")
    if version not in (2, 3):
        hint = ""
        if version == 1:
            hint = "; version 1 was dropped by the reference in 2023: convert the model again"
        elif version & 0xFFFF == 0 and version:
            hint = "; the file seems to be big-endian"
        cursor.fail(
            "unsupported_version",
            f" version: {version} is not supported, expected 2 or 3{hint}",
            expected=[2, 3],
            found=version,
        )
    return version


class _Metadata:
    """The metadata loop and what it must count over all entries."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._text_bytes = 0
        self._built = 0
        self._strings = 0

    def read(self, n_keys: int) -> dict[str, KeyValue]:
        """All entries, by key."""
        cursor = self._cursor
        metadata: dict[str, KeyValue] = {}
        seen: set[bytes] = set()
        for index in range(n_keys):
            cursor.subject, cursor.facts = f"metadata[{index}]", {}
            raw = self._text(".key", cursor.limits.key_bytes, "key_bytes")
            if not raw:
                cursor.fail("empty_key", ".key: is empty")
            key = decode(raw)
            cursor.facts = {"key": key}
            if raw in seen:
                cursor.fail("duplicate_key", f".key: '{brief(key)}' is there twice")
            seen.add(raw)
            while key in metadata:  # bytes that are escaped look like another key, which holds the escape's letters
                key += "\\"
            cursor.subject = f"metadata '{brief(key)}'"
            kind = self._type(cursor.u32(": type"), nested=False)
            value: Scalar | ArrayValue
            if kind is ValueType.ARRAY:
                value = self._array()
            elif kind is ValueType.STRING:
                value = decode(self._text("", cursor.limits.string_bytes, "string_bytes"))
            else:
                (value,) = struct.unpack("<" + CODES[kind], cursor.take(SCALAR_BYTES[kind], ": value"))
            metadata[key] = KeyValue(key=key, type=kind, value=value)
        cursor.subject, cursor.facts = "header", {}
        return metadata

    def _text(self, what: str, limit: int, limit_name: str) -> bytes:
        cursor = self._cursor
        length = cursor.length(f"{what}: length", limit, limit_name)
        self._text_bytes += length
        if self._text_bytes > cursor.limits.text_bytes:
            cursor.over("text_bytes", cursor.limits.text_bytes, self._text_bytes, f"{what}: all text so far")
        return cursor.take(length, what)

    def _type(self, found: int, *, nested: bool) -> ValueType:
        try:
            kind = ValueType(found)
        except ValueError:
            kind = None
        if kind is None or (nested and kind is ValueType.ARRAY):
            what = "element type" if nested else "type"
            reason = "arrays of arrays are not supported" if kind else "is no GGUF value type"
            self._cursor.fail("bad_type", f": {what}: {found}: {reason}", expected="0 to 12", found=found)
        return kind

    def _array(self) -> ArrayValue:
        cursor = self._cursor
        limits = cursor.limits
        kind = self._type(cursor.u32(": element type"), nested=True)
        width = 8 if kind is ValueType.STRING else SCALAR_BYTES[kind]
        count = cursor.count(": count", width)
        if count > limits.array_elements:
            cursor.over("array_elements", limits.array_elements, count, ": count")
        offset = cursor.position
        elements: tuple[Scalar, ...] | None = None
        if kind is ValueType.STRING:
            self._strings += count
            if self._strings > limits.array_strings:
                cursor.over("array_strings", limits.array_strings, self._strings, ": strings in arrays so far")
            cursor.walk_strings(count)
        elif count > SHORT_ARRAY:
            cursor.skip(count * width, ": elements")
        else:
            self._built += count
            if self._built > limits.built_elements:
                cursor.over("built_elements", limits.built_elements, self._built, ": numbers in short arrays so far")
            elements = struct.unpack(f"<{count}{CODES[kind]}", cursor.take(count * width, ": elements"))
        return ArrayValue(element_type=kind, count=count, offset=offset, end=cursor.position, elements=elements)


def _alignment(metadata: dict[str, KeyValue], file: str) -> int:
    entry = metadata.get(ALIGNMENT_KEY)
    if entry is None:
        return DEFAULT_ALIGNMENT
    if entry.type is not ValueType.U32:
        raise FileError(
            f"{file}: metadata '{ALIGNMENT_KEY}': is {entry.type.name.lower()}, expected u32",
            code="wrong_key_type",
            file=file,
            key=ALIGNMENT_KEY,
            expected="u32",
            found=entry.type.name.lower(),
        )
    value = entry.value
    assert isinstance(value, int)
    if value == 0 or value & (value - 1):
        raise FileError(
            f"{file}: metadata '{ALIGNMENT_KEY}': {value} is not a power of two",
            code="bad_alignment",
            file=file,
            key=ALIGNMENT_KEY,
            expected="a power of two",
            found=value,
        )
    return value


def _read_tensors(cursor: Cursor, count: int) -> list[tuple[str, int, tuple[int, ...], int, int]]:
    """The tensor records: name, type id, shape without trailing ones, offset in the data section, bytes."""
    records = []
    seen: set[str] = set()
    for index in range(count):
        cursor.subject, cursor.facts = f"tensors[{index}]", {}
        name = _tensor_name(cursor)
        cursor.facts = {"tensor": name}
        if name in seen:
            cursor.fail("duplicate_tensor", f".name: '{brief(name)}' is there twice")
        seen.add(name)
        cursor.subject = f"tensors[{index}] ({brief(name)})"
        shape = _shape(cursor)
        kind = _tensor_type(cursor, cursor.u32(".type"), shape)
        nbytes = _tensor_bytes(cursor, kind, shape)
        records.append((name, kind, shape, cursor.u64(".offset"), nbytes))
    cursor.subject, cursor.facts = "header", {}
    return records


def _tensor_name(cursor: Cursor) -> str:
    length = cursor.u64(".name: length")
    if length > MAX_NAME_BYTES:
        start = decode(cursor.take(min(length, MAX_NAME_BYTES, cursor.remaining), ".name"))
        cursor.fail(
            "bad_tensor_name",
            f".name: {length} bytes ('{brief(start)}…'), at most {MAX_NAME_BYTES} are allowed",
            tensor=start,
            expected=MAX_NAME_BYTES,
            found=length,
        )
    raw = cursor.take(length, ".name")
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        text = decode(raw)
        cursor.fail("bad_tensor_name", f".name: '{brief(text)}' is not UTF-8 at byte {error.start}", tensor=text)
    if not name or "\0" in name:
        problem = "holds a NUL byte" if name else "is empty"
        cursor.fail("bad_tensor_name", f".name: {problem}", tensor=name)
    return name


def _shape(cursor: Cursor) -> tuple[int, ...]:
    n_dims = cursor.u32(".n_dims")
    if n_dims > MAX_DIMS:
        cursor.fail("bad_shape", f".n_dims: {n_dims}, at most {MAX_DIMS} are allowed", expected=MAX_DIMS, found=n_dims)
    shape = list(struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims, ".shape")))
    product = 1
    for axis, extent in enumerate(shape):
        product *= extent
        if extent > _INT64_MAX or product > _INT64_MAX:
            problem = f"{extent} along axis {axis} is" if extent > _INT64_MAX else f"{shape} are"
            cursor.fail(
                "bad_shape",
                f".shape: {problem} more elements than 2^63-1",
                expected=_INT64_MAX,
                found=list(shape),
            )
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return tuple(shape) or (1,)


def _tensor_type(cursor: Cursor, found: int, shape: tuple[int, ...]) -> int:
    kind = TYPES.get(found)
    if kind is None:
        cursor.fail(
            "bad_type",
            f".type: {found} is no tensor type, or one that was removed",
            expected=f"a ggml type id up to {max(TYPES)}",
            found=found,
        )
    if shape[0] % kind.block_size:
        cursor.fail(
            "bad_shape",
            f".shape: rows of {shape[0]} elements are not whole blocks of {kind.block_size} ({kind.name})",
            expected=f"a multiple of {kind.block_size}",
            found=list(shape),
        )
    return found


def _tensor_bytes(cursor: Cursor, type_id: int, shape: tuple[int, ...]) -> int:
    nbytes = TYPES[type_id].row_bytes(shape[0])
    for extent in shape[1:]:
        nbytes *= extent
    if nbytes > _SIZE_MAX:
        cursor.fail(
            "bad_shape", f".shape: {list(shape)} are more bytes than 2^64-1", expected=_SIZE_MAX, found=list(shape)
        )
    return nbytes
