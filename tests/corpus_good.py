"""Files that look odd and are fine: they load, every byte of theirs is served, and a warning says what is odd."""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.modelfile.types import ValueType
from app.modelfile.writer import MetadataValue, Typed, seeded_chunks
from tests.builders import F32, shard_name, t0, t0_split, vocabulary
from tests.corpus import Build

WHOLE = 312_576
FOUR_LAYERS = 608_512


@dataclass(frozen=True, slots=True)
class Good:
    """A model of `nbytes` bytes of tensors that is accepted; `warns` occurs in one of its warnings, if not empty."""

    name: str
    build: Build
    nbytes: int = WHOLE
    warns: str = ""


def _t0(**changes: Any) -> Build:
    return lambda folder: t0(folder / "model.gguf", **changes)


def _words(n_tokens: int = 32, **changes: MetadataValue | None) -> Build:
    return _t0(
        set_keys={**vocabulary(n_tokens), **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}}
    )


def _resized(change: int, last: str = "output_norm.weight") -> Build:
    """T0(2) aligned to 512, `last` at its end, whose 256 bytes need padding: the file ends so many bytes behind it."""

    def make(folder: Path) -> Path:
        path = t0(folder / "model.gguf", drop=[last], add=[(last, F32, (64,))], alignment=512)
        tensor = read_model_file(path).by_name[last]
        os.truncate(path, tensor.offset + tensor.nbytes + change)
        return path

    return make


def _patched(name: str, place: int, patch: bytes, kind: str = "f32") -> Build:
    """T0(2) with `patch` written at byte `place` of a tensor of type `kind`."""

    def make(folder: Path) -> Path:
        quantised = BY_NAME[kind]
        shape = (128, 64) if "ffn_down" in name else (64,)
        nbytes = quantised.row_bytes(shape[0]) * (shape[1] if len(shape) > 1 else 1)
        data = bytearray(b"".join(seeded_chunks(quantised, nbytes, 7)))
        data[place : place + len(patch)] = patch
        return t0(folder / "model.gguf", types={name: kind}, data={name: bytes(data)})

    return make


def _renamed(name: str) -> Build:
    def make(folder: Path) -> Path:
        place = folder / name
        place.parent.mkdir(exist_ok=True)
        return t0(place)

    return make


def _split(*sizes: int, ask: int = 0, prefix: str = "m", **changes: Any) -> Build:
    return lambda folder: t0_split(folder, sizes, prefix=prefix, **changes)[ask]


def _no_rows(folder: Path) -> Path:
    """An embedding of no bytes, at the place where the next tensor starts."""
    empty = {"token_embd.weight": (64, 0)}
    return t0(folder / "model.gguf", set_keys={"llama.vocab_size": 0}, shapes=empty, drop=["output.weight"])


def _in_odd_folder(folder: Path) -> Path:
    place = folder / "a-00001-of-00013"
    place.mkdir()
    return t0_split(place, (20, 19))[0]


def _whole_folder(make: Callable[[Path], object]) -> Build:
    def build(folder: Path) -> Path:
        make(folder)
        (folder / "README.md").write_text("a model")
        return folder

    return build


def _cache_of_a_hub(folder: Path) -> Path:
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for index, path in enumerate(t0_split(blobs, (13, 13, 13))):
        blob = path.rename(blobs / f"{index:064x}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot / shard_name("m", 0, 3)


def _equal_tokens() -> Typed:
    words = [f"t{index}" for index in range(32)]
    words[6] = words[5]
    return Typed(ValueType.STRING, words, array=True)


def _smaller(type_name: str) -> int:
    """T0(2) with one feed-forward tensor of another type."""
    return WHOLE - 128 * 64 * 4 + BY_NAME[type_name].row_bytes(128) * 64


DOWN = "blk.1.ffn_down.weight"
Q8_BLOCK_7 = 7 * 34
GOOD: tuple[Good, ...] = (
    Good("version-2", _t0(version=2)),
    *(Good(f"alignment-{value}", _t0(alignment=value)) for value in (1, 8, 64, 4096)),
    Good("key-not-utf8", _t0(set_keys={os.fsdecode(b"\xff\xfe"): 1, r"\xff\xfe": 2})),
    Good("values-not-utf8", _t0(set_keys={"a": os.fsdecode(b"x\xff"), "b": [os.fsdecode(b"\xf0\x9f")]})),
    Good("no-rows", _no_rows, WHOLE - 2 * 64 * 32 * 4),
    *(Good(f"type-{name}", _t0(types={DOWN: name}), _smaller(name)) for name in ("mxfp4", "nvfp4", "q1_0", "q2_0")),
    Good("without-last-padding", _resized(0)),
    Good("bytes-behind-the-end", _resized(5000)),
    # weights that are no numbers: whoever computes with them must know, a loader hands them over
    Good("nan-in-a-scale", _patched(DOWN, Q8_BLOCK_7, b"\x00\x7e", "q8_0"), _smaller("q8_0")),
    Good("infinity-in-a-scale", _patched(DOWN, Q8_BLOCK_7, b"\x00\x7c", "q8_0"), _smaller("q8_0")),
    Good("largest-scale", _patched(DOWN, Q8_BLOCK_7, b"\xff\x7b", "q8_0"), _smaller("q8_0")),
    Good("nan-in-a-norm", _patched("output_norm.weight", 16, struct.pack("<f", float("nan")))),
    # tokenizers
    Good("scores-longer", _words(scores=Typed(ValueType.F32, [0.0] * 40, array=True))),
    Good("scores-as-i32", _words(scores=Typed(ValueType.I32, [1] * 32, array=True))),
    Good("eos-is-no-token", _words(eos_token_id=2**32 - 1), warns="eos_token_id: 4294967295 is no token of 32"),
    Good("bos-is-no-token", _words(bos_token_id=32), warns="bos_token_id: 32 is no token of 32"),
    Good("equal-tokens", _words(tokens=_equal_tokens()), warns="the first are 5 and 6, both 't5'"),
    # names that mean nothing
    Good("named-like-a-first-file", _renamed("x-00001-of-00013.gguf")),
    Good("named-like-a-fourth-file", _renamed("x-00004-of-00013.gguf")),
    Good("named-like-a-piece", _renamed("x.gguf.part1of2")),
    # sets
    Good("set-of-three", _split(13, 13, 13), FOUR_LAYERS),
    Good("set-of-one", _split(39), FOUR_LAYERS),
    Good("set-asked-by-its-second", _split(13, 13, 13, ask=1), FOUR_LAYERS, "is file 2 of 3"),
    Good("set-asked-by-its-last", _split(13, 13, 13, ask=2), FOUR_LAYERS, "is file 3 of 3"),
    Good("first-file-of-metadata", _split(0, 20, 19), FOUR_LAYERS),
    Good("last-file-empty", _split(39, 0), FOUR_LAYERS),
    Good("own-alignments", _split(13, 13, 13, alignments=(32, 4096, 8)), FOUR_LAYERS),
    Good("folder-named-like-a-set", _in_odd_folder, FOUR_LAYERS),
    Good("set-without-a-name", _split(20, 19, prefix=""), FOUR_LAYERS),
    Good("cache-of-a-hub", _cache_of_a_hub, FOUR_LAYERS),
    Good("folder-with-a-file", _whole_folder(lambda folder: t0(folder / "m.gguf"))),
    Good("folder-with-a-set", _whole_folder(lambda folder: t0_split(folder, (13, 13, 13))), FOUR_LAYERS),
)
