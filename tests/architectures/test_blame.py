"""A disagreement names the keys it follows from."""

import time
import tracemalloc
from pathlib import Path

import pytest

from app.architectures.understanding import understand
from app.errors import MetadataError
from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.modelfile.types import ValueType
from app.modelfile.writer import MetadataValue, Typed
from app.units import MIB
from tests.builders import t0, t0_moe, vocabulary
from tests.oracle import the_catalog


def _keys(path: Path) -> tuple[str, list[str]]:
    with pytest.raises(MetadataError) as refused:
        understand(read_model_file(path), the_catalog()).require_tensors()
    keys = refused.value.facts.get("keys", [])
    assert isinstance(keys, list)
    assert all(str(key) in str(refused.value) for key in keys)
    return refused.value.code, [str(key) for key in keys]


def test_an_absent_key_with_a_default_comes_first(tmp_path: Path) -> None:
    """Without its count of key heads a model's K has another width: the absent key is named before the present ones."""
    code, keys = _keys(t0(tmp_path / "m.gguf", set_keys={"llama.attention.head_count_kv": None}))
    assert ("wrong_shape", "llama.attention.head_count_kv (absent)") == (code, keys[0])
    assert "llama.attention.head_count" in keys


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"llama.feed_forward_length": 64}, "llama.feed_forward_length"),
        ({"llama.attention.key_length": 32}, "llama.attention.key_length"),
        ({"llama.attention.head_count": 8}, "llama.attention.head_count"),
        (vocabulary(33), "tokenizer.ggml.tokens"),
        ({"llama.vocab_size": 31}, "llama.vocab_size"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 1}, "llama.expert_count"),
    ],
)
def test_a_changed_key_is_among_those_named(tmp_path: Path, change: dict[str, MetadataValue | None], key: str) -> None:
    """A key whose value does not fit the tensors is named where a shape was computed from it."""
    code, keys = _keys(t0(tmp_path / "m.gguf", set_keys=change))
    assert code == "missing_tensor" or key in keys


def test_only_what_moves_the_extent_that_disagrees_is_named(tmp_path: Path) -> None:
    """Where one extent of two agrees, the keys that only the agreeing one follows from are left out."""
    code, keys = _keys(t0(tmp_path / "m.gguf", shapes={"blk.0.ffn_gate.weight": (64, 96)}))
    assert ("wrong_shape", ["llama.feed_forward_length"]) == (code, keys)


def test_a_tensor_that_is_only_required_for_want_of_a_key(tmp_path: Path) -> None:
    """A model of experts whose count is gone lacks dense tensors: the absent count is named."""
    absent = {"llama.expert_count": None, "llama.expert_used_count": None}
    code, keys = _keys(t0_moe(tmp_path / "m.gguf", set_keys=absent))
    assert "missing_tensor" == code
    assert not keys or all(key.endswith("(absent)") for key in keys)


def test_a_tensor_nobody_knows_for_want_of_a_key(tmp_path: Path) -> None:
    """A rotary table that LongRoPE would use is unknown without the key that says so."""
    code, keys = _keys(t0(tmp_path / "m.gguf", add=[("rope_factors_long.weight", BY_NAME["f32"], (8,))]))
    assert ("unexpected_tensor", ["llama.rope.scaling.type (absent)"]) == (code, keys)


def test_a_contradiction_on_the_way_is_no_answer(tmp_path: Path) -> None:
    """Changed keys that the architecture refuses explain nothing and break nothing."""
    keys = {"llama.rope.dimension_count": 16, "llama.attention.head_count_kv": Typed(ValueType.U32, 1)}
    code, named = _keys(t0(tmp_path / "m.gguf", set_keys=keys))
    assert "wrong_shape" == code
    assert "llama.rope.dimension_count" not in named


@pytest.mark.parametrize("count", [1 << 30, (1 << 64) - 1])
def test_a_count_of_blocks_is_only_the_files_word(tmp_path: Path, count: int) -> None:
    """However many blocks some key promises, naming the keys behind a missing tensor stays small and quick."""
    odd: dict[str, MetadataValue | None] = {"a.block_count": Typed(ValueType.U64, count)}
    tracemalloc.start()
    started = time.thread_time()
    try:
        code, _keys_named = _keys(t0(tmp_path / "m.gguf", set_keys=odd, drop=["blk.0.attn_q.weight"]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "missing_tensor" == code
    assert (time.thread_time() - started < 3, peak < 16 * MIB) == (True, True)
