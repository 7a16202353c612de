"""Metadata that fits its tensors or does not, as users' files have had it: how to make each, and what must be said."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.errors import Fact
from app.modelfile.types import ValueType
from app.modelfile.writer import MetadataValue, Typed, write_gguf
from tests.builders import F32, Spec, build, llama_keys, llama_tensors, shard_name, split_keys, t0, t0_moe, vocabulary
from tests.corpus import Bad, Build

WHOLE = 312_576
EXPERTS = 904_448


@dataclass(frozen=True, slots=True)
class Accepted:
    """A model of `nbytes` bytes of tensors; `facts` are exact."""

    name: str
    build: Build
    nbytes: int
    facts: Mapping[str, Any] = field(default_factory=dict)


def _u32(*elements: int) -> Typed:
    return Typed(ValueType.U32, [*elements], array=True)


def _i32(*elements: int) -> Typed:
    return Typed(ValueType.I32, [*elements], array=True)


def openelm(path: Path, **changes: Any) -> Path:
    """A model whose heads and feed-forward grow: 2 and 4 heads of 16, 1 and 2 for keys, 128 and 256 hidden units."""
    keys: dict[str, MetadataValue] = {
        "general.architecture": "openelm",
        "openelm.context_length": 128,
        "openelm.embedding_length": 64,
        "openelm.block_count": 2,
        "openelm.feed_forward_length": _i32(128, 256),
        "openelm.attention.head_count": _i32(2, 4),
        "openelm.attention.head_count_kv": _i32(1, 2),
        "openelm.attention.key_length": 16,
        "openelm.attention.value_length": 16,
        "openelm.attention.layer_norm_rms_epsilon": 1e-5,
        "openelm.vocab_size": 32,
        "tokenizer.ggml.model": "none",
    }
    specs: list[Spec] = [("token_embd.weight", F32, (64, 32)), ("output_norm.weight", F32, (64,))]
    for layer, (qkv, heads, ff) in enumerate(((64, 32, 128), (128, 64, 256))):
        shapes: Mapping[str, tuple[int, ...]] = {
            "attn_norm": (64,),
            "attn_qkv": (64, qkv),
            "attn_q_norm": (16,),
            "attn_k_norm": (16,),
            "attn_output": (heads, 64),
            "ffn_norm": (64,),
            "ffn_gate": (64, ff),
            "ffn_up": (64, ff),
            "ffn_down": (ff, 64),
        }
        specs += [(f"blk.{layer}.{name}.weight", F32, shape) for name, shape in shapes.items()]
    return build(path, keys, specs, **changes)


def _made(make: Callable[..., Path], **changes: Any) -> Build:
    """`make` with changes; keys of the model without their prefix go in `keys`."""
    arch = "openelm" if make is openelm else "llama"
    keys = {f"{arch}.{key}": value for key, value in changes.pop("keys", {}).items()}
    return lambda folder: make(
        folder / "model.gguf",
        set_keys={**changes.get("set_keys", {}), **keys},
        **{name: value for name, value in changes.items() if name != "set_keys"},
    )


def _heads_of_32(**keys: MetadataValue) -> Build:
    shapes = {
        f"blk.{layer}.{name}.weight": shape
        for layer in range(2)
        for name, shape in (
            ("attn_q", (64, 128)),
            ("attn_k", (64, 64)),
            ("attn_v", (64, 64)),
            ("attn_output", (128, 64)),
        )
    }
    lengths = {"attention.key_length": 32, "attention.value_length": 32}
    return _made(t0, keys={**lengths, **{key.replace("__", "."): value for key, value in keys.items()}}, shapes=shapes)


def tied(path: Path, layers: int = 4) -> Path:
    """T0(L) whose output is the embedding."""
    return t0(path, layers, drop={"output.weight"})


def two_files(folder: Path, *, with_output: bool = True) -> Path:
    """T0(4) in two files, the embedding in the first, the output (if there is one) last in the second."""
    specs = [spec for spec in llama_tensors(4) if spec[0] != "output.weight"]
    specs += [("output.weight", F32, (64, 32))] * with_output
    half, paths = len(specs) // 2, []
    for number, part in enumerate((specs[:half], specs[half:])):
        keys = {**(llama_keys(4) if number == 0 else {}), **split_keys(number, 2, len(specs))}
        paths.append(folder / shard_name("model", number, 2))
        write_gguf(paths[-1], keys, [(*spec, number * half + index) for index, spec in enumerate(part)])
    return paths[0]


def _adapter(folder: Path) -> Path:
    specs: list[Spec] = [
        ("blk.0.attn_q.weight.lora_a", F32, (64, 4)),
        ("blk.0.attn_q.weight.lora_b", F32, (4, 64)),
    ]
    return build(folder / "model.gguf", {"general.architecture": "llama", "general.type": "adapter"}, specs)


def _old_experts(folder: Path) -> Path:
    names = [f"blk.{layer}.ffn_{part}_exps.weight" for layer in (0, 1) for part in ("gate", "up", "down")]
    single: list[Spec] = [
        (f"blk.{layer}.ffn_{part}.{expert}.weight", F32, (128, 64) if part == "down" else (64, 128))
        for layer in (0, 1)
        for part in ("gate", "up", "down")
        for expert in range(4)
    ]
    return t0_moe(folder / "model.gguf", drop=names, add=single)


HEADS, HEADS_KV, FF = "attention.head_count", "attention.head_count_kv", "feed_forward_length"

ACCEPTED: tuple[Accepted, ...] = (
    # one value or one per layer
    Accepted("arrays-of-i32", _made(openelm), 378_368, {"n_head": [2, 4], "n_head_kv": [1, 2], "n_ff": [128, 256]}),
    Accepted(
        "arrays-of-u32",
        _made(openelm, keys={HEADS: _u32(2, 4), HEADS_KV: _u32(1, 2), FF: _u32(128, 256)}),
        378_368,
        {"n_head": [2, 4], "n_head_kv": [1, 2], "n_ff": [128, 256]},
    ),
    Accepted(
        "one-head-count-for-all",
        _made(
            openelm, keys={HEADS: 4}, shapes={"blk.0.attn_qkv.weight": (64, 96), "blk.0.attn_output.weight": (64, 64)}
        ),
        394_752,
        {"n_head": [4, 4], "n_head_kv": [1, 2]},
    ),
    Accepted(
        "no-key-heads-as-many-as-heads",
        _made(
            openelm,
            keys={HEADS_KV: None},
            shapes={"blk.0.attn_qkv.weight": (64, 96), "blk.1.attn_qkv.weight": (64, 192)},
        ),
        402_944,
        {"n_head_kv": [2, 4]},
    ),
    Accepted("experts-used-by-layer", _made(t0_moe, keys={"expert_used_count": _u32(2, 2)}), EXPERTS),
    # head size, rotation, scaling
    Accepted("heads-of-32", _heads_of_32(), 410_880, {"n_embd_head_k": [32, 32], "n_rot": [32, 32]}),
    Accepted("heads-of-32-rotated", _heads_of_32(rope__dimension_count=32), 410_880, {"n_rot": [32, 32]}),
    Accepted("rotary-table", lambda f: t0(f / "model.gguf", 4, add=[("rope_freqs.weight", F32, (8,))]), 608_544),
    *(
        Accepted(
            f"scaling-{scaling}",
            _made(t0, keys={"rope.scaling.type": scaling, "rope.scaling.factor": Typed(ValueType.F32, 0.0)}),
            WHOLE,
        )
        for scaling in ("none", "linear", "yarn", "longrope")
    ),
    # the output
    Accepted("tied", lambda folder: tied(folder / "model.gguf"), 600_320),
    Accepted("output-in-the-second-file", two_files, 608_512),
    Accepted("tied-over-two-files", lambda folder: two_files(folder, with_output=False), 600_320),
)


def _length(key: str) -> Bad:
    facts: dict[str, Fact] = {"key": f"openelm.{key}", "expected": 2, "found": 3}
    return Bad(f"{key}-of-3", "bad_value", _made(openelm, keys={key: _i32(2, 4, 4)}), "3 elements", facts)


def _count(name: str, key: str, found: int, **keys: MetadataValue | None) -> Bad:
    return Bad(name, "bad_value", _made(t0_moe, keys=keys), str(found), {"key": f"llama.{key}", "found": found})


def _shape(name: str, make: Build, tensor: str, expected: list[int], found: list[int]) -> Bad:
    return Bad(name, "wrong_shape", make, tensor, {"tensor": tensor, "expected": [*expected], "found": [*found]})


REFUSED: tuple[Bad, ...] = (
    # one value or one per layer
    _length(HEADS),
    _length(HEADS_KV),
    _length(FF),
    _shape("scalar-heads", _made(openelm, keys={HEADS: 4}), "blk.0.attn_qkv.weight", [64, 96], [64, 64]),
    _shape("no-key-heads", _made(openelm, keys={HEADS_KV: None}), "blk.0.attn_qkv.weight", [64, 96], [64, 64]),
    # head size, rotation, scaling
    Bad(
        "rotates-half-a-head",
        "bad_value",
        _heads_of_32(rope__dimension_count=16),
        "rope.dimension_count is 16, expected 32",
        {"key": "llama.rope.dimension_count", "found": 16},
    ),
    Bad(
        "scaling-su",
        "bad_value",
        _made(t0, keys={"rope.scaling.type": "su"}),
        "'su'",
        {"key": "llama.rope.scaling.type", "found": "su"},
    ),
    _shape("rotary-table-of-16", _made(t0, add=[("rope_freqs.weight", F32, (16,))]), "rope_freqs.weight", [8], [16]),
    # the vocabulary
    _shape("33-tokens", _made(t0, set_keys=vocabulary(33)), "token_embd.weight", [64, 33], [64, 32]),
    # what it is
    Bad("adapter", "not_a_model", _adapter, "an adapter", {"key": "general.type"}),
    Bad(
        "projector",
        "not_a_model",
        _made(t0, set_keys={"general.architecture": "clip", "general.type": "mmproj"}),
        "projector",
    ),
    Bad("projector-by-architecture", "not_a_model", _made(t0, set_keys={"general.architecture": "clip"}), "projector"),
    Bad(
        "vocabulary-alone",
        "no_tensors",
        lambda folder: build(folder / "model.gguf", {**llama_keys(2), **vocabulary()}, []),
        "no tensors",
    ),
    Bad(
        "unknown-architecture",
        "unsupported_architecture",
        _made(t0, set_keys={"general.architecture": "nosuch"}),
        "'nosuch'",
        {"key": "general.architecture", "architecture": "nosuch"},
    ),
    Bad("no-architecture", "unsupported_architecture", _made(t0, set_keys={"general.architecture": None}), "''"),
    Bad(
        "5000-letters",
        "unsupported_architecture",
        _made(t0, set_keys={"general.architecture": "x" * 5000}),
        "x" * 59 + "…'",
        {"architecture": "x" * 60},
    ),
    # experts and limits
    _count("5-of-4-experts", "expert_used_count", 5, expert_used_count=5),
    _count("2-of-no-experts", "expert_used_count", 2, expert_count=None),
    _count("0-of-4-experts", "expert_used_count", 0, expert_used_count=0),
    _count("1025-experts", "expert_count", 1025, expert_count=1025),
    _count("0-blocks", "block_count", 0, block_count=0),
    _count("513-blocks", "block_count", 513, block_count=513),
    _count("2^32-1-blocks", "block_count", 2**32 - 1, block_count=2**32 - 1),
    Bad(
        "a-tensor-per-expert", "missing_tensor", _old_experts, "ffn_down_exps", {"tensor": "blk.0.ffn_down_exps.weight"}
    ),
    # tensors that are missing, wrong or too many
    Bad(
        "no-ffn_norm",
        "missing_tensor",
        _made(t0, drop={"blk.1.ffn_norm.weight"}),
        "blk.1.ffn_norm.weight",
        {"tensor": "blk.1.ffn_norm.weight", "expected": [64], "found": None},
    ),
    _shape(
        "attn_k-of-48", _made(t0, shapes={"blk.0.attn_k.weight": (64, 48)}), "blk.0.attn_k.weight", [64, 32], [64, 48]
    ),
    *(
        Bad(
            f"also-{name[:12]}",
            "unexpected_tensor",
            _made(t0, add=[(name, F32, (64, 64))]),
            name,
            {"tensor": name, "unexpected": [name], "expected": 21, "found": 22},
        )
        for name in ("blk.0.foo.weight", "blk.7.attn_q.weight", "blk.99999999999999999999.attn_q.weight")
    ),
    Bad("no-head-count", "wrong_shape", _made(t0, keys={HEADS: None}), "blk.0.attn_q.weight", {"found": [64, 64]}),
)
