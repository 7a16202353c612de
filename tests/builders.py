"""Base files for tests, built with the shipped writer, and byte-level pieces for files that no writer would make."""

import shutil
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.ggml import BY_NAME, GgmlType
from app.modelfile.reader import read_model_file
from app.modelfile.types import ModelFile, ValueType
from app.modelfile.writer import MetadataValue, TensorData, Typed, seeded_chunks, write_gguf

F32 = BY_NAME["f32"]

Spec = tuple[str, GgmlType, tuple[int, ...]]
"""A tensor's name, type and shape (ne0 first)."""


def llama_keys(
    layers: int, *, embd: int = 64, ff: int = 128, heads: int = 4, kv: int = 2, head_dim: int | None = None
) -> dict[str, MetadataValue]:
    """The metadata of a small llama model with a vocabulary of 32."""
    keys: dict[str, MetadataValue] = {
        "general.architecture": "llama",
        "llama.context_length": 128,
        "llama.embedding_length": embd,
        "llama.block_count": layers,
        "llama.feed_forward_length": ff,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv,
        "llama.vocab_size": 32,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "none",
    }
    if head_dim is not None:
        keys["llama.attention.key_length"] = head_dim
        keys["llama.attention.value_length"] = head_dim
    return keys


def llama_tensors(
    layers: int, *, embd: int = 64, ff: int = 128, heads: int = 4, kv: int = 2, head_dim: int | None = None
) -> list[Spec]:
    """The tensors of the same model, all F32."""
    hd = head_dim or embd // heads
    specs: list[Spec] = [
        ("token_embd.weight", F32, (embd, 32)),
        ("output_norm.weight", F32, (embd,)),
        ("output.weight", F32, (embd, 32)),
    ]
    for layer in range(layers):
        specs += [
            (f"blk.{layer}.{name}.weight", F32, shape)
            for name, shape in (
                ("attn_norm", (embd,)),
                ("attn_q", (embd, hd * heads)),
                ("attn_k", (embd, hd * kv)),
                ("attn_v", (embd, hd * kv)),
                ("attn_output", (hd * heads, embd)),
                ("ffn_norm", (embd,)),
                ("ffn_gate", (embd, ff)),
                ("ffn_up", (embd, ff)),
                ("ffn_down", (ff, embd)),
            )
        ]
    return specs


def build(
    path: Path,
    keys: Mapping[str, MetadataValue],
    specs: Sequence[Spec],
    *,
    set_keys: Mapping[str, MetadataValue | None] | None = None,
    drop: Collection[str] = (),
    add: Sequence[Spec] = (),
    types: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    data: Mapping[str, TensorData] | None = None,
    seed: int | None = 0,
    alignment: int = 32,
    version: int = 3,
) -> Path:
    """Write the model with changes; answers `path`.

    `set_keys` adds or replaces keys (None: leaves out); `drop`, `add`, `types` (by type name), `shapes`, `data` change
    tensors by name. `seed` fills every tensor differently with finite numbers; None leaves holes (sparse zeros).
    """
    metadata = dict(keys)
    for key, value in (set_keys or {}).items():
        if value is None:
            metadata.pop(key, None)
        else:
            metadata[key] = value
    tensors: list[tuple[str, GgmlType, Sequence[int], TensorData]] = []
    kept = [spec for spec in specs if spec[0] not in drop]
    for index, (name, kind, shape) in enumerate([*kept, *add]):
        kind = BY_NAME[(types or {}).get(name, kind.name)]
        fill: TensorData = None if seed is None else seed * 1_000_003 + index
        tensors.append((name, kind, (shapes or {}).get(name, shape), (data or {}).get(name, fill)))
    write_gguf(path, metadata, tensors, alignment=alignment, version=version)
    return path


def t0(path: Path, layers: int = 2, **changes: Any) -> Path:
    """T0(L): a llama model of 9L+3 tensors; T0(2) has 312,576 bytes of tensor data, T0(4) 608,512."""
    return build(path, llama_keys(layers), llama_tensors(layers), **changes)


def tp(path: Path, kv: int, ff: int, layers: int, **changes: Any) -> Path:
    """TP(K,F,L): as T0 with 8 heads of 64 elements, K of them for keys and values, and F feed-forward rows."""
    shape = {"heads": 8, "kv": kv, "ff": ff, "head_dim": 64}
    return build(path, llama_keys(layers, **shape), llama_tensors(layers, **shape), **changes)


def t0_moe(path: Path, layers: int = 2, **changes: Any) -> Path:
    """T0(L) with four experts, two of them used: 443,904 bytes per layer."""
    specs: list[Spec] = []
    for name, kind, shape in llama_tensors(layers):
        stem = name.removesuffix(".weight")
        if stem.endswith("ffn_gate"):
            specs.append((f"{stem}_inp.weight", kind, (64, 4)))
        if stem.endswith(("ffn_gate", "ffn_up", "ffn_down")):
            specs.append((f"{stem}_exps.weight", kind, (*shape, 4)))
        else:
            specs.append((name, kind, shape))
    keys = {**llama_keys(layers), "llama.expert_count": 4, "llama.expert_used_count": 2}
    return build(path, keys, specs, **changes)


def vocabulary(n_tokens: int = 32, model: str = "llama") -> dict[str, MetadataValue]:
    """Keys of a small tokenizer whose arrays agree."""
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": Typed(ValueType.STRING, [f"t{index}" for index in range(n_tokens)], array=True),
        "tokenizer.ggml.scores": Typed(ValueType.F32, [0.0] * n_tokens, array=True),
        "tokenizer.ggml.token_type": Typed(ValueType.I32, [1] * n_tokens, array=True),
    }


def shard_name(prefix: str, number: int, count: int) -> str:
    """The name of shard `number` (from 0) of `count`."""
    return f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf"


def split_keys(number: int, count: int, n_tensors: int) -> dict[str, MetadataValue]:
    """The keys every shard carries."""
    return {
        "split.no": Typed(ValueType.U16, number),
        "split.count": Typed(ValueType.U16, count),
        "split.tensors.count": Typed(ValueType.I32, n_tensors),
    }


def t0_split(
    folder: Path,
    sizes: Sequence[int],
    *,
    layers: int = 4,
    prefix: str = "m",
    alignments: Sequence[int] | None = None,
    set_keys: Mapping[int, Mapping[str, MetadataValue | None]] | None = None,
) -> list[Path]:
    """T0(L) cut into shards of `sizes` tensors (0: metadata only), with the same bytes as `t0(…, layers)`.

    `set_keys` changes keys by shard number. Answers the shards' paths.
    """
    specs, count, first, paths = llama_tensors(layers), len(sizes), 0, []
    for number, size in enumerate(sizes):
        keys = {**(llama_keys(layers) if number == 0 else {}), **split_keys(number, count, len(specs))}
        for key, value in (set_keys or {}).get(number, {}).items():
            if value is None:
                keys.pop(key, None)
            else:
                keys[key] = value
        path = folder / shard_name(prefix, number, count)
        tensors = [(*spec, first + index) for index, spec in enumerate(specs[first : first + size])]
        write_gguf(path, keys, tensors, alignment=alignments[number] if alignments else 32)
        paths.append(path)
        first += size
    return paths


def materialise(header: Path, out: Path, seed: int | None = None) -> ModelFile:
    """Make a recorded header into a whole file: a hole of zeros, or finite numbers seeded per tensor (small ones only).

    Answers the model as read.
    """
    shutil.copyfile(header, out)
    out.chmod(0o644)
    with out.open("r+b") as file:
        file.truncate(4 << 40)  # room for any of them; costs nothing, and tells where the last tensor ends
        tensors = read_model_file(out).tensors
        file.truncate(max(header.stat().st_size, *(tensor.offset + tensor.nbytes for tensor in tensors)))
        if seed is not None:
            for index, tensor in enumerate(tensors):
                file.seek(tensor.offset)
                for chunk in seeded_chunks(tensor.type, tensor.nbytes, seed * 1_000_003 + index):
                    file.write(chunk)
    return read_model_file(out)


def hdr(n_tensors: int, n_keys: int, version: int = 3) -> bytes:
    """The fixed first 24 bytes of a file."""
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys)


def string(text: str | bytes) -> bytes:
    """A string as the format writes it."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    """One metadata entry: key, type id, and the value's bytes as they are."""
    return string(key) + struct.pack("<I", kind) + payload


def u32(key: str | bytes, value: int) -> bytes:
    """A u32 entry."""
    return entry(key, ValueType.U32, struct.pack("<I", value))


def array(key: str | bytes, element: int, count: int, payload: bytes = b"") -> bytes:
    """An array entry that claims `count` elements."""
    return entry(key, ValueType.ARRAY, struct.pack("<IQ", element, count) + payload)


ARCHITECTURE = entry("general.architecture", ValueType.STRING, string("llama"))


def info(name: str | bytes, shape: Sequence[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    """One tensor record."""
    return (
        string(name)
        + struct.pack("<I", len(shape) if n_dims is None else n_dims)
        + b"".join(struct.pack("<Q", extent & (2**64 - 1)) for extent in shape)
        + struct.pack("<IQ", kind & (2**32 - 1), offset & (2**64 - 1))
    )


def raw_file(
    path: Path,
    *,
    keys: Sequence[bytes] = (ARCHITECTURE,),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    alignment: int = 32,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    version: int = 3,
) -> Path:
    """Write a file from pieces: the header, padding to `alignment` where there is data, the data. Answers `path`."""
    head = hdr(len(infos) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys, version)
    head += b"".join(keys) + b"".join(infos)
    if data:
        head += bytes(-len(head) % alignment) + data
    path.write_bytes(head)
    return path
