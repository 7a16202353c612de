"""Keys as files have them: types, forms, bounds, defaults."""

from pathlib import Path

import pytest

from app.architectures.hparams import layers_where
from app.architectures.understanding import Understanding, understand
from app.errors import MetadataError
from app.modelfile.reader import read_model_file
from app.modelfile.types import ValueType
from app.modelfile.writer import MetadataValue, Typed
from tests.builders import t0, t0_moe
from tests.oracle import the_catalog


def _understand(path: Path) -> Understanding:
    understanding = understand(read_model_file(path), the_catalog())
    understanding.comparison.require()
    return understanding


def _refused(path: Path) -> MetadataError:
    with pytest.raises(MetadataError) as refused:
        _understand(path)
    return refused.value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("2", "string"),
        (Typed(ValueType.F32, 2.0), "f32"),
        (Typed(ValueType.I32, 2), "i32"),
        (Typed(ValueType.U64, 2), "u64"),
        (True, "bool"),
        (Typed(ValueType.U32, [2, 2], array=True), "an array of u32"),
    ],
)
def test_a_whole_number_must_be_u32(tmp_path: Path, value: MetadataValue, found: str) -> None:
    """A key of another type is refused, naming the key, the expected and the found type."""
    error = _refused(t0(tmp_path / "m.gguf", set_keys={"llama.block_count": value}))
    assert ("wrong_key_type", "llama.block_count", "u32", found) == (
        error.code,
        error.facts["key"],
        error.facts["expected"],
        error.facts["found"],
    )


@pytest.mark.parametrize(
    "key",
    [
        "llama.context_length",
        "llama.embedding_length",
        "llama.block_count",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named_in_full(tmp_path: Path, key: str) -> None:
    """A required key that is absent is refused under its full name."""
    error = _refused(t0(tmp_path / "m.gguf", set_keys={key: None}))
    assert ("missing_key", key) == (error.code, error.facts["key"])


@pytest.mark.parametrize("key", ["attention.head_count", "embedding_length", "attention.head_count_kv"])
def test_zero_where_a_divisor_is_needed(tmp_path: Path, key: str) -> None:
    """A zero that the reference would divide by ends in a typed error, never in a division."""
    assert _refused(t0(tmp_path / "m.gguf", set_keys={f"llama.{key}": 0})).code in ("bad_value", "wrong_shape")


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"expert_used_count": 5}, "expert_used_count"),
        ({"expert_used_count": 0}, "expert_used_count"),
        ({"expert_count": 0}, "expert_used_count"),
        ({"expert_count": 1025}, "expert_count"),
        ({"expert_group_count": 4}, "expert_group_count"),
        ({"expert_group_count": 3}, "expert_group_count"),
        ({"expert_group_count": 2}, "expert_group_used_count"),
        ({"block_count": 0}, "block_count"),
        ({"block_count": 513}, "block_count"),
        ({"block_count": 2**32 - 1}, "block_count"),
        ({"nextn_predict_layers": 3}, "nextn_predict_layers"),
        ({"rope.dimension_count": 8}, "rope.dimension_count"),
        ({"rope.scaling.type": "su"}, "rope.scaling.type"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, keys: dict[str, MetadataValue], key: str) -> None:
    """Counts and limits that contradict each other are refused under the key that is wrong."""
    changed = {f"llama.{name}": value for name, value in keys.items()}
    error = _refused(t0_moe(tmp_path / "m.gguf", set_keys=changed))
    assert ("bad_value", f"llama.{key}") == (error.code, error.facts["key"])


@pytest.mark.parametrize("scaling", ["none", "linear", "yarn", "longrope"])
def test_rope_scaling_types(tmp_path: Path, scaling: str) -> None:
    """Every scaling the reference knows is accepted, and a factor of zero divides nothing."""
    keys: dict[str, MetadataValue] = {
        "llama.rope.scaling.type": scaling,
        "llama.rope.scaling.factor": Typed(ValueType.F32, 0.0),
    }
    assert scaling == _understand(t0(tmp_path / "m.gguf", set_keys=keys)).hparams.rope_scaling_type


def test_experts_used_may_differ_by_layer(tmp_path: Path) -> None:
    """A per-layer array is accepted where a scalar is usual, with one element per block and no other number."""
    fine = {"llama.expert_used_count": Typed(ValueType.U32, [2, 1], array=True)}
    assert _understand(t0_moe(tmp_path / "m.gguf", set_keys=fine)).hparams.n_expert_used == (2, 1)
    long = {"llama.expert_used_count": Typed(ValueType.U32, [2, 1, 1], array=True)}
    error = _refused(t0_moe(tmp_path / "m.gguf", set_keys=long))
    assert (2, 3) == (error.facts["expected"], error.facts["found"])


def test_i32_elements_count_and_negative_ones_do_not(tmp_path: Path) -> None:
    """Per-layer arrays of i32 are read like u32; a negative element is refused."""
    for elements, accepted in (([4, 4], True), ([4, -4], False)):
        keys = {"llama.attention.head_count": Typed(ValueType.I32, elements, array=True)}
        path = t0(tmp_path / "m.gguf", set_keys=keys)
        if accepted:
            assert _understand(path).hparams.n_head == (4, 4)
        else:
            assert _refused(path).code == "bad_value"


def test_key_heads_default_to_query_heads(tmp_path: Path) -> None:
    """Without a count of key heads every query head has its own, and the shapes must agree with that."""
    path = t0(tmp_path / "m.gguf", set_keys={"llama.attention.head_count_kv": None})
    error = _refused(path)
    assert ("wrong_shape", "blk.0.attn_k.weight", [64, 64], [64, 32]) == (
        error.code,
        error.facts["tensor"],
        error.facts["expected"],
        error.facts["found"],
    )


def test_head_size_of_its_own(tmp_path: Path) -> None:
    """A head size apart from width over heads changes the projections and nothing else."""
    keys: dict[str, MetadataValue] = {"llama.attention.key_length": 32, "llama.attention.value_length": 32}
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.attn_q.weight": (64, 128),
            f"blk.{layer}.attn_k.weight": (64, 64),
            f"blk.{layer}.attn_v.weight": (64, 64),
            f"blk.{layer}.attn_output.weight": (128, 64),
        }
    assert _understand(t0(tmp_path / "m.gguf", set_keys=keys, shapes=shapes)).model.n_bytes == 410880


@pytest.mark.parametrize(
    ("period", "dense_first", "expected"),
    [
        (0, False, "111110"),
        (1, False, "000000"),
        (3, False, "110110"),
        (2, True, "010100"),
        (6, False, "111110"),
    ],
)
def test_periodic_layers(period: int, dense_first: bool, expected: str) -> None:
    """Every period-th layer is dense, the first or the last of each; NextN layers have no window."""
    flags = layers_where(5, 6, period, dense_first=dense_first)
    assert expected == "".join(str(int(flag)) for flag in flags)
