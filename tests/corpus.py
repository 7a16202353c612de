"""One small bad file per fact: how to make it, and what must be said about it. The reader and HTTP are held to it."""

import os
import shutil
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from app.errors import Fact
from app.modelfile.types import ValueType
from app.modelfile.writer import Typed
from tests.builders import (
    ARCHITECTURE,
    F32,
    array,
    entry,
    hdr,
    info,
    raw_file,
    shard_name,
    string,
    t0,
    t0_split,
    u32,
)

Build = Callable[[Path], Path]
"""Makes the file in a folder of its own; answers the path to ask for."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A file (or set, or folder) that is refused with `code`. `says` occurs in the message; `facts` are exact."""

    name: str
    code: str
    build: Build
    says: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)


def _bytes(content: bytes) -> Build:
    def make(folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(content)
        return path

    return make


def _keys(*keys: bytes) -> Build:
    return lambda folder: raw_file(folder / "model.gguf", keys=keys)


def _tensors(*infos: bytes, data: int = 64, keys: tuple[bytes, ...] = ()) -> Build:
    return lambda folder: raw_file(
        folder / "model.gguf", keys=(ARCHITECTURE, *keys), infos=infos, data=bytes(data) if data else b""
    )


def _t0_cut(fraction_of: Callable[[bytes], int]) -> Build:
    def make(folder: Path) -> Path:
        path = t0(folder / "model.gguf")
        content = path.read_bytes()
        path.write_bytes(content[: fraction_of(content)])
        return path

    return make


def _t0_patched(offset: int, patch: bytes) -> Build:
    def make(folder: Path) -> Path:
        path = t0(folder / "model.gguf")
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(patch)
        return path

    return make


def _sparse_array(folder: Path) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(hdr(0, 1) + array("k", ValueType.U32, 2**30 + 1))
    os.truncate(path, 5 << 30)
    return path


def _alignment(payload: bytes, kind: int = ValueType.U32) -> Build:
    return _tensors(info("t", [8]), data=32, keys=(entry("general.alignment", kind, payload),))


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "model.gguf")
    return folder / "model.gguf"


def _socket(folder: Path) -> Path:
    here = os.getcwd()
    os.chdir(folder)  # a socket's path is at most 107 bytes long, a test's folder may be longer
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("model.gguf")
    finally:
        os.chdir(here)
    return folder / "model.gguf"


def _folder(*names: str) -> Build:
    def make(folder: Path) -> Path:
        for name in names:
            t0(folder / name)
        return folder

    return make


def _split(
    *sizes: int,
    ask: int = 0,
    without: tuple[int, ...] = (),
    set_keys: Mapping[int, Mapping[str, Typed | None]] | None = None,
) -> Build:
    def make(folder: Path) -> Path:
        paths = t0_split(folder, sizes or (13, 13, 13), set_keys=set_keys)
        for number in without:
            paths[number].unlink()
        return paths[ask]

    return make


def _split_folder(folder: Path) -> Path:
    t0_split(folder, (13, 13, 13))[0].unlink()
    return folder


def _merged(name: str) -> Build:
    def make(folder: Path) -> Path:
        first, second = t0_split(folder, (20, 19))
        merged = first.read_bytes() + second.read_bytes()
        first.unlink()
        second.unlink()
        (folder / name).write_bytes(merged)
        return folder / name

    return make


def _renamed(folder: Path) -> Path:
    return t0_split(folder, (20, 19))[0].rename(folder / "renamed.gguf")


def _twice(folder: Path) -> Path:
    first, second = t0_split(folder, (20, 19))
    second.write_bytes(second.read_bytes().replace(b"blk.1.ffn_down.weight", b"blk.0.ffn_down.weight"))
    return first


_LAST = "output_norm.weight"


def _last_byte_missing(folder: Path) -> Path:
    path = t0(folder / "model.gguf", drop=[_LAST], add=[(_LAST, F32, (64,))], alignment=512)
    os.truncate(path, path.stat().st_size - 257)  # the tensor's last half block is padding
    return path


def _count(value: int) -> Typed:
    return Typed(ValueType.U16, value)


_U64_MAX = 2**64 - 1
_KEY_AT = len(string("k")) + 4  # bytes of a one-letter key and its type

CORPUS: tuple[Bad, ...] = (
    # what is no GGUF file
    Bad("empty", "empty_file", _bytes(b""), "is empty"),
    Bad("lfs-pointer", "bad_magic", _bytes(b"version https://git-lfs.github.com/spec/v1\n" + b"x" * 87), "Git LFS"),
    Bad("ggjt", "bad_magic", _bytes(b"tjgg" + bytes(60)), "GGJT"),
    Bad("html", "bad_magic", _bytes(b"<!DOCTYPE html>"), "HTML"),
    Bad("zip", "bad_magic", _bytes(b"PK\x03\x04" + bytes(60)), "ZIP"),
    Bad("zeros", "bad_magic", _bytes(bytes(4096)), "zeros"),
    Bad("other-bytes", "bad_magic", _bytes(b"\xff\xfe\x01\x02" * 10), "expected 'GGUF'", {"expected": "GGUF"}),
    Bad("two-other-bytes", "bad_magic", _bytes(b"GA")),
    Bad("half-magic", "truncated", _bytes(b"GG"), "2 bytes", {"expected": 24, "found": 2}),
    Bad("header-of-23-bytes", "truncated", _bytes(hdr(0, 0)[:23]), "23 bytes", {"expected": 24, "found": 23}),
    Bad("version-0", "unsupported_version", _t0_patched(4, b"\0"), "version: 0", {"found": 0}),
    Bad("version-1", "unsupported_version", _t0_patched(4, b"\1"), "version: 1 ", {"found": 1}),
    Bad("version-4", "unsupported_version", _t0_patched(4, b"\4"), "version: 4", {"found": 4}),
    Bad("version-ffff", "unsupported_version", _t0_patched(4, b"\xff\xff"), "65535", {"found": 65535}),
    Bad("big-endian", "unsupported_version", _t0_patched(4, b"\0\0\0\3"), "big-endian", {"found": 0x0300_0000}),
    # counts that are not to be believed
    Bad("n_kv-2^63", "truncated", _bytes(hdr(0, 2**63)), "n_kv: 9223372036854775808", {"found": 2**63}),
    Bad("n_kv-2^63-1", "truncated", _bytes(hdr(0, 2**63 - 1)), "n_kv"),
    Bad("n_tensors-2^63", "truncated", _bytes(hdr(2**63, 0)), "n_tensors", {"found": 2**63}),
    Bad("n_tensors-2^40", "truncated", _bytes(hdr(2**40, 0)), "n_tensors", {"found": 2**40}),
    Bad("both-2^32", "truncated", _bytes(hdr(2**32, 2**32))),
    Bad("one-record-too-many", "bad_tensor_name", _t0_patched(8, b"\x16"), "tensors[21].name"),
    Bad("no-keys-behind-header", "truncated", _bytes(hdr(0, 1)), "n_kv", {"expected": 0, "found": 1}),
    Bad("key-length-2^48-1", "truncated", _bytes(hdr(0, 1) + struct.pack("<Q", 2**48 - 1) + bytes(16)), "key: length"),
    Bad(
        "string-length-2^64-1",
        "truncated",
        _bytes(hdr(0, 1) + entry("k", 8, struct.pack("<Q", _U64_MAX))),
        "'k'",
        {"key": "k", "expected": _U64_MAX, "found": 0},
    ),
    Bad("array-count-2^63", "truncated", _keys(array("k", 0, 2**63)), "'k': count", {"key": "k", "found": 2**63}),
    Bad("string-array-count-2^61", "truncated", _keys(array("k", 8, 2**61)), "'k': count", {"found": 2**61}),
    Bad("string-one-byte-short", "truncated", _keys(entry("k", 8, struct.pack("<Q", 4) + b"abc")), "'k': length"),
    Bad("array-one-byte-short", "truncated", _keys(array("k", 4, 2, bytes(7))), "'k': count", {"key": "k"}),
    Bad("strings-end-early", "truncated", _keys(array("k", 8, 2, string("a" * 9) + b"\1" * 7)), "'k'[1]: length"),
    Bad("last-string-too-long", "truncated", _keys(array("k", 8, 1, struct.pack("<Q", 5) + b"abcd")), "'k'[0]"),
    Bad("elements-over-2^30", "limit_exceeded", _sparse_array, "array_elements", {"found": 2**30 + 1}),
    Bad("value-cut", "truncated", _keys(ARCHITECTURE, entry("k", 12, bytes(7))), "'k': value", {"key": "k"}),
    # metadata
    Bad("unknown-value-type", "bad_type", _keys(entry("k", 13, bytes(8))), "type: 13", {"key": "k", "found": 13}),
    Bad("nested-array", "bad_type", _keys(array("k", 9, 1, bytes(16))), "arrays of arrays", {"key": "k"}),
    Bad(
        "duplicate-key-not-utf8",
        "duplicate_key",
        _keys(u32(b"\xff\xfe", 1), u32(b"\xff\xfe", 2)),
        "\\xff\\xfe",
        {"key": "\\xff\\xfe"},
    ),
    Bad("empty-key", "empty_key", _keys(entry("", 4, bytes(4))), "metadata[0].key"),
    Bad("duplicate-key", "duplicate_key", _keys(u32("x.y", 1), u32("x.y", 1)), "'x.y'", {"key": "x.y"}),
    Bad("alignment-0", "bad_alignment", _alignment(struct.pack("<I", 0)), "0 is not a power", {"found": 0}),
    Bad("alignment-24", "bad_alignment", _alignment(struct.pack("<I", 24)), facts={"found": 24}),
    Bad("alignment-3", "bad_alignment", _alignment(struct.pack("<I", 3))),
    Bad("alignment-2^31+1", "bad_alignment", _alignment(struct.pack("<I", 2**31 + 1))),
    Bad("alignment-2^31", "out_of_bounds", _alignment(struct.pack("<I", 2**31)), "starts at 2147483648"),
    Bad("alignment-i32", "wrong_key_type", _alignment(struct.pack("<i", 32), 5), facts={"found": "i32"}),
    Bad("alignment-u64", "wrong_key_type", _alignment(struct.pack("<Q", 32), 10), facts={"expected": "u32"}),
    Bad("alignment-string", "wrong_key_type", _alignment(string("32"), 8), facts={"found": "string"}),
    Bad("alignment-array", "wrong_key_type", _alignment(struct.pack("<IQI", 4, 1, 32), 9), facts={"found": "array"}),
    # tensor records
    Bad("name-of-64-bytes", "bad_tensor_name", _tensors(info("n" * 64, [8])), "64 bytes", {"found": 64}),
    Bad("name-of-32-two-byte-letters", "bad_tensor_name", _tensors(info("é" * 32, [8])), facts={"found": 64}),
    Bad("name-empty", "bad_tensor_name", _tensors(info("", [8])), "is empty"),
    Bad("name-with-nul", "bad_tensor_name", _tensors(info("a\0b", [8])), "NUL"),
    Bad("name-not-utf8", "bad_tensor_name", _tensors(info(b"a\xff", [8])), "not UTF-8"),
    Bad("duplicate-tensor", "duplicate_tensor", _tensors(info("a", [8]), info("a", [8], offset=32)), "'a'"),
    *(
        Bad(f"type-{kind}", "bad_type", _tensors(info("t", [256, 2], kind)), f"type: {kind & 0xFFFF_FFFF} ")
        for kind in (4, 5, 31, 32, 33, 36, 37, 38, 43, 2**31, -1)
    ),
    Bad("q4_K-row-of-128", "bad_shape", _tensors(info("t", [128, 2], 12)), "blocks of 256", {"found": [128, 2]}),
    Bad("q8_0-row-of-48", "bad_shape", _tensors(info("t", [48], 8)), "blocks of 32", {"tensor": "t"}),
    *(
        Bad(f"n_dims-{n}", "bad_shape", _tensors(info("t", [1, 1, 1, 1, 1], n_dims=n)), f"n_dims: {n}", {"found": n})
        for n in (5, 1_000_000, 2**32 - 1)
    ),
    Bad("elements-2^64", "bad_shape", _tensors(info("t", [2**32, 2**32])), "2^63-1", {"found": [2**32, 2**32]}),
    Bad("negative-extent", "bad_shape", _tensors(info("t", [2**63, 1])), "axis 0"),
    Bad("bytes-over-2^64", "bad_shape", _tensors(info("t", [4, 2**30 - 1, 2**31])), "2^64-1"),
    Bad("bytes-pad-to-zero", "out_of_bounds", _tensors(info("t", [4, 2**30 - 1, 2**30 + 1])), "(t)"),
    Bad(
        "second-start-wraps",
        "out_of_bounds",
        _tensors(info("a", [2**63 - 64], 24), info("b", [2**63 - 64], 24, offset=2**63 - 64)),
        "(a)",
    ),
    Bad("4-tib", "out_of_bounds", _tensors(info("t", [2**40])), "past the file's end", {"tensor": "t"}),
    Bad(
        "next-offset-of-a-giant",
        "bad_offset",
        _tensors(info("a", [64, 2**42 + 1], 8), info("b", [8], offset=64)),
        "299067162755168",
        {"tensor": "b", "expected": 299_067_162_755_168, "found": 64},
    ),
    Bad("record-cut", "truncated", lambda folder: _cut(_tensors(info("t", [8]), data=0)(folder), 5), "tensors[0] (t)"),
    # where tensors lie
    Bad("offset-odd", "bad_offset", _tensors(info("t", [8], offset=7)), "7 is not a multiple of 32", {"found": 7}),
    Bad("offset-hole", "bad_offset", _tensors(info("t", [8], offset=32)), "expected 0", {"found": 32, "expected": 0}),
    Bad("offset-overlap", "bad_offset", _tensors(info("a", [16]), info("b", [8], offset=32)), "expected 64"),
    Bad("offset-2^64-32", "bad_offset", _tensors(info("t", [8], offset=2**64 - 32)), facts={"found": 2**64 - 32}),
    Bad(
        "alignment-64-offset-32",
        "bad_offset",
        _tensors(info("a", [8]), info("b", [8], offset=32), keys=(u32("general.alignment", 64),)),
        "expected 64",
    ),
    Bad("one-byte-short", "out_of_bounds", _tensors(info("t", [9]), data=35), "36 bytes", {"tensor": "t"}),
    Bad("no-data-section", "out_of_bounds", _tensors(info("t", [0]), data=0), "tensor data starts at"),
    Bad("cut-in-metadata", "truncated", _t0_cut(lambda content: content.index(b"llama.vocab_size") + 20)),
    Bad("cut-in-a-record", "truncated", _t0_cut(lambda content: content.index(b"blk.1.attn_v") + 30)),
    Bad("cut-behind-metadata", "truncated", _t0_cut(lambda content: content.index(b"token_embd") - 8)),
    Bad("cut-at-a-tenth", "out_of_bounds", _t0_cut(lambda content: len(content) // 10), "past the file's end"),
    # no regular files
    Bad("fifo", "not_regular_file", _fifo, "FIFO", {"found": "a FIFO"}),
    Bad("socket", "not_regular_file", _socket, "socket"),
    Bad("device", "not_regular_file", lambda _: Path("/dev/zero"), "character device"),
    Bad("empty-folder", "is_directory", _folder(), "without a .gguf file"),
    Bad("folder-of-two", "is_directory", _folder("a.gguf", "b.gguf"), "2 models", {"found": ["a.gguf", "b.gguf"]}),
    # split models
    Bad(
        "second-file-missing",
        "split_missing",
        _split(without=(1,)),
        shard_name("m", 1, 3),
        {"missing": [shard_name("m", 1, 3)], "expected": 3, "found": 2},
    ),
    Bad("only-second-file", "split_missing", _split(ask=1, without=(0, 2)), "2 of the model's 3 files"),
    Bad("folder-without-first-file", "split_missing", _split_folder, shard_name("m", 0, 3)),
    Bad("set-in-one-file", "split_missing", _merged(shard_name("m", 0, 2)), facts={"missing": [shard_name("m", 1, 2)]}),
    Bad("set-in-one-file-renamed", "split_name", _merged("merged.gguf"), "-00001-of-00002.gguf"),
    Bad("renamed", "split_name", _renamed, "must end in", {"expected": "-00001-of-00002.gguf"}),
    Bad("no-split-number", "missing_key", _split(set_keys={0: {"split.no": None}}), "split.no", {"key": "split.no"}),
    Bad("no-number-later", "missing_key", _split(set_keys={2: {"split.no": None}}), shard_name("m", 2, 3)),
    Bad("no-tensor-count", "missing_key", _split(set_keys={0: {"split.tensors.count": None}})),
    Bad("number-over-count", "split_mismatch", _split(set_keys={0: {"split.no": _count(3)}}), "below 3", {"found": 3}),
    Bad("wrong-number-later", "split_mismatch", _split(set_keys={1: {"split.no": _count(2)}}), "expected 1"),
    Bad("other-count-later", "split_mismatch", _split(set_keys={1: {"split.count": _count(4)}}), "expected 3"),
    Bad(
        "too-few-tensors",
        "split_mismatch",
        _split(set_keys={0: {"split.tensors.count": Typed(ValueType.I32, 40)}}),
        "39, the tensors of all 3 files",
        {"key": "split.tensors.count", "found": 40},
    ),
    Bad("count-as-u32", "wrong_key_type", _split(set_keys={0: {"split.count": Typed(ValueType.U32, 3)}}), "u16"),
    Bad("number-as-i32", "wrong_key_type", _split(set_keys={1: {"split.no": Typed(ValueType.I32, 1)}}), "u16"),
    Bad("many-files", "limit_exceeded", _split(set_keys={0: {"split.count": _count(65535)}}), "n_shards"),
    Bad("tensor-in-two-files", "duplicate_tensor", _twice, "is also in"),
    Bad("last-tensor-one-byte-short", "out_of_bounds", _last_byte_missing, "output_norm", {"tensor": _LAST}),
    Bad("piece-of-a-file", "out_of_bounds", _t0_cut(lambda content: len(content) * 6 // 10), "past the file's end"),
)


def _cut(path: Path, count: int) -> Path:
    os.truncate(path, path.stat().st_size - count)
    return path


class Named(Protocol):
    """A file of a corpus: its name, and how to make it."""

    @property
    def name(self) -> str: ...
    @property
    def build(self) -> Build: ...


def fresh(named: Named, folder: Path) -> Path:
    """Build a file in an empty folder of its own below `folder`."""
    place = folder / named.name
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    return named.build(place)
