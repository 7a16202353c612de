"""Small files of every architecture, made from its descriptor's own example."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from app.architectures.descriptor import Architecture
from app.architectures.manifest import Expected
from app.architectures.understanding import resolve
from app.ggml import BY_NAME, GgmlType
from app.modelfile.reader import read_model_file
from app.modelfile.types import TensorInfo
from app.modelfile.writer import MetadataValue, TensorData, write_gguf

F32 = BY_NAME["f32"]
VOCABULARY = 48


def example_metadata(architecture: Architecture) -> dict[str, MetadataValue]:
    """The example's keys with their prefix, and a tokenizer that is none."""
    keys: dict[str, MetadataValue] = {"general.architecture": architecture.name, "tokenizer.ggml.model": "none"}
    example: Mapping[str, Any] = {"vocab_size": VOCABULARY, **architecture.example}
    bare = {param.key for param in architecture.hparams if param.bare}
    for key, value in example.items():
        whole = key in bare or key.startswith("tokenizer.")
        keys[key if whole else f"{architecture.name}.{key}"] = value
    return keys


def example_file(architecture: Architecture, path: Path, also: Collection[str] = ()) -> Path:
    """Write the example with every tensor the manifest requires, filled with seeded numbers; answers `path`.

    `also` adds optional ones by the label of their role.
    """
    metadata = example_metadata(architecture)
    write_gguf(path, metadata, [("placeholder", F32, (1,), None)])
    hparams = resolve(architecture, read_model_file(path).metadata)
    present: dict[str, TensorInfo] = {}
    wanted: dict[str, Expected] = {}
    for expected in architecture.manifest(hparams, present):
        if (expected.required or str(expected.role) in also) and not expected.copy:
            wanted.setdefault(expected.name, expected)
    tensors: list[tuple[str, GgmlType, tuple[int, ...], TensorData]] = [
        (name, F32, expected.shape, seed) for seed, (name, expected) in enumerate(wanted.items())
    ]
    write_gguf(path, metadata, tensors)
    return path
