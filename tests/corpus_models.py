"""Files that can be read and are no model that can be loaded: how to make each, and what must be said about it."""

from pathlib import Path
from typing import Any

from app.modelfile.types import ValueType
from app.modelfile.writer import MetadataValue, Typed
from tests.builders import F32, Spec, build, entry, hdr, info, llama_keys, raw_file, string, t0, vocabulary
from tests.corpus import Bad, Build

BLOCKS = "llama.block_count"


def _t0(**changes: Any) -> Build:
    return lambda folder: t0(folder / "model.gguf", **changes)


def _keys(**changes: MetadataValue | None) -> Build:
    """T0(2) with keys changed; `__` stands for a dot."""
    return _t0(set_keys={name.replace("__", "."): value for name, value in changes.items()})


def _words(**changes: MetadataValue | None) -> Build:
    """T0(2) with a tokenizer of 32 tokens, its keys changed."""
    return _t0(set_keys={**vocabulary(), **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}})


def _array(kind: ValueType, count: int) -> Typed:
    return Typed(kind, [1] * count, array=True)


def _bytes(content: bytes) -> Build:
    def make(folder: Path) -> Path:
        (folder / "model.gguf").write_bytes(content)
        return folder / "model.gguf"

    return make


def _vocabulary_alone(folder: Path) -> Path:
    return build(folder / "model.gguf", {**llama_keys(2), **vocabulary()}, [])


def _extra(name: str, shape: tuple[int, ...] = (8,)) -> Build:
    spec: Spec = (name, F32, shape)
    return _t0(add=[spec])


_WRONG_COUNTS: tuple[tuple[str, MetadataValue], ...] = (
    ("string", "2"),
    ("f32", Typed(ValueType.F32, 2.0)),
    ("i32", Typed(ValueType.I32, 2)),
    ("u64", Typed(ValueType.U64, 2)),
    ("bool", True),
    ("an array of u32", Typed(ValueType.U32, [2], array=True)),
)

MODELS: tuple[Bad, ...] = (
    # what it is
    Bad("nothing-at-all", "unsupported_architecture", _bytes(hdr(0, 0)), "''", {"key": "general.architecture"}),
    Bad("string-ends-with-file", "unsupported_architecture", _bytes(hdr(0, 1) + entry("k", 8, string("abc"))), "''"),
    Bad("no-architecture", "unsupported_architecture", _keys(general__architecture=None), "''"),
    Bad("unknown-architecture", "unsupported_architecture", _keys(general__architecture="nosuch"), "'nosuch'"),
    Bad("endless-architecture", "unsupported_architecture", _keys(general__architecture="x" * 5000), "x" * 59 + "…"),
    Bad(
        "architecture-as-number", "wrong_key_type", _keys(general__architecture=7), "expected string", {"found": "u32"}
    ),
    Bad("projector", "not_a_model", _keys(general__architecture="clip", general__type="mmproj"), "projector"),
    Bad("adapter", "not_a_model", _keys(general__type="adapter"), "adapter", {"key": "general.type"}),
    Bad("vocabulary-alone", "no_tensors", _vocabulary_alone, "no tensors", {"found": 0}),
    # keys
    *(
        Bad(
            f"block_count-as-{found.replace(' ', '-')}",
            "wrong_key_type",
            _keys(llama__block_count=value),
            BLOCKS,
            {"key": BLOCKS, "expected": "u32", "found": found},
        )
        for found, value in _WRONG_COUNTS
    ),
    *(
        Bad(f"no-{key.rpartition('.')[2]}", "missing_key", _t0(set_keys={key: None}), key, {"key": key})
        for key in (
            "llama.context_length",
            "llama.embedding_length",
            BLOCKS,
            "llama.attention.layer_norm_rms_epsilon",
            "tokenizer.ggml.model",
        )
    ),
    Bad("block_count-0", "bad_value", _keys(llama__block_count=0), BLOCKS, {"key": BLOCKS, "found": 0}),
    Bad("block_count-2^32-1", "bad_value", _keys(llama__block_count=2**32 - 1), BLOCKS, {"found": 2**32 - 1}),
    Bad("head_count-0", "wrong_shape", _keys(llama__attention__head_count=0), "attn_q", {"found": [64, 64]}),
    Bad("head_count_kv-0", "wrong_shape", _keys(llama__attention__head_count_kv=0), "attn_k", {"found": [64, 32]}),
    Bad("embedding_length-0", "wrong_shape", _keys(llama__embedding_length=0), "token_embd", {"expected": [0, 32]}),
    Bad("file_type-as-string", "wrong_key_type", _keys(general__file_type="Q4_0"), "file_type", {"found": "string"}),
    # tokenizer
    Bad(
        "scores-short", "bad_tokenizer", _words(scores=_array(ValueType.F32, 3)), "scores", {"expected": 32, "found": 3}
    ),
    Bad("types-short", "bad_tokenizer", _words(token_type=_array(ValueType.I32, 31)), "token_type", {"found": 31}),
    Bad("types-as-u8", "bad_tokenizer", _words(token_type=_array(ValueType.U8, 32)), "array of u8"),
    Bad("scores-as-u8", "bad_tokenizer", _words(scores=_array(ValueType.U8, 32)), "array of u8"),
    Bad("unknown-tokenizer", "bad_tokenizer", _words(model="nosuch"), "nosuch", {"found": "nosuch"}),
    Bad("no-tokens", "missing_key", _words(tokens=None), "tokens", {"key": "tokenizer.ggml.tokens"}),
    Bad("no-merges", "missing_key", _words(model="gpt2"), "merges", {"key": "tokenizer.ggml.merges"}),
    Bad("eos-as-i32", "wrong_key_type", _words(eos_token_id=Typed(ValueType.I32, 1)), "eos", {"found": "i32"}),
    Bad(
        "one-token-more-than-rows",
        "wrong_shape",
        _t0(set_keys=vocabulary(33)),
        "token_embd.weight",
        {"expected": [64, 33], "found": [64, 32]},
    ),
    # tensors
    Bad(
        "no-tensor-of-its-own", "missing_key", lambda f: raw_file(f / "m.gguf", infos=[info("b", [8])], data=bytes(32))
    ),
    Bad(
        "tensor-missing",
        "missing_tensor",
        _t0(drop=["blk.1.ffn_norm.weight"]),
        "blk.1.ffn_norm.weight",
        {"tensor": "blk.1.ffn_norm.weight", "expected": [64]},
    ),
    Bad("tensor-unknown", "unexpected_tensor", _extra("blk.0.foo.weight"), "foo", {"expected": 21, "found": 22}),
    Bad("tensor-without-elements", "unexpected_tensor", _extra("marker", (0, 5)), "marker", {"tensor": "marker"}),
    Bad("name-of-63-bytes", "unexpected_tensor", _extra("n" * 63), "n" * 63, {"tensor": "n" * 63}),
    Bad(
        "shape-turned",
        "wrong_shape",
        _t0(shapes={"blk.0.attn_k.weight": (32, 64)}),
        "blk.0.attn_k.weight",
        {"expected": [64, 32], "found": [32, 64]},
    ),
)
