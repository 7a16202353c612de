"""What a file is, and whether its tensors are what it should have."""

import math
from pathlib import Path

import pytest

from app.architectures.understanding import Understanding, understand
from app.errors import MetadataError
from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.modelfile.writer import MetadataValue
from tests.builders import build, llama_keys, t0, t0_moe, vocabulary
from tests.oracle import the_catalog

F32 = BY_NAME["f32"]


def _understand(path: Path) -> Understanding:
    return understand(read_model_file(path), the_catalog())


def _refused(path: Path) -> MetadataError:
    with pytest.raises(MetadataError) as refused:
        _understand(path).comparison.require()
    return refused.value


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"general.architecture": "clip", "general.type": "mmproj"}, "not_a_model"),
        ({"general.architecture": "clip"}, "not_a_model"),
        ({"general.type": "adapter"}, "not_a_model"),
        ({"general.architecture": "nosuch"}, "unsupported_architecture"),
        ({"general.architecture": None}, "unsupported_architecture"),
        ({"general.architecture": "x" * 5000}, "unsupported_architecture"),
        ({"general.architecture": 7}, "wrong_key_type"),
        ({"general.file_type": "Q4_0"}, "wrong_key_type"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, keys: dict[str, MetadataValue | None], code: str) -> None:
    """Projectors, adapters and unknown architectures are refused, each with its own code and a short message."""
    error = _refused(t0(tmp_path / "m.gguf", set_keys=keys))
    assert code == error.code
    assert len(str(error)) < 200


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_warned_about(tmp_path: Path, value: float) -> None:
    """The reference loads such a file, so it loads; but whoever wonders at its answers is told which key it is."""
    odd = {"llama.rope.freq_base": value, "general.score": value}
    (warning,) = _understand(t0(tmp_path / "m.gguf", set_keys=odd)).warnings
    assert warning.startswith(f"not finite: llama.rope.freq_base is {value}; ")
    assert not _understand(t0(tmp_path / "ok.gguf")).warnings


def test_many_numbers_that_are_none_are_one_warning(tmp_path: Path) -> None:
    """However many keys a hostile file has, and however long they are, what is said of them is short."""
    odd: dict[str, MetadataValue | None] = {f"llama.{'n' * 1000}{index}": math.nan for index in range(1000)}
    (warning,) = _understand(t0(tmp_path / "m.gguf", set_keys=odd)).warnings
    assert "and 996 more" in warning
    assert len(warning) < 1000


def test_a_vocabulary_is_no_model(tmp_path: Path) -> None:
    """Metadata and a tokenizer without tensors is refused as such."""
    path = build(tmp_path / "m.gguf", {**llama_keys(2), **vocabulary()}, [])
    assert _refused(path).code == "no_tensors"


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    """A required tensor that is absent is refused under its name, with the shape it should have."""
    error = _refused(t0(tmp_path / "m.gguf", drop={"blk.1.ffn_norm.weight"}))
    assert ("missing_tensor", "blk.1.ffn_norm.weight", [64]) == (
        error.code,
        error.facts["tensor"],
        error.facts["expected"],
    )


@pytest.mark.parametrize(
    "name", ["blk.0.foo.weight", "blk.7.attn_q.weight", "blk.99999999999999999999.attn_q.weight", "foo"]
)
def test_an_unknown_tensor_is_refused(tmp_path: Path, name: str) -> None:
    """A tensor the architecture does not know is refused and named, whatever number it bears."""
    error = _refused(t0(tmp_path / "m.gguf", add=[(name, F32, (8,))]))
    assert ("unexpected_tensor", name, 21, 22) == (
        error.code,
        error.facts["tensor"],
        error.facts["expected"],
        error.facts["found"],
    )


def test_a_wrong_shape_gives_both_shapes(tmp_path: Path) -> None:
    """A shape that does not follow from the metadata is refused with what was expected and found."""
    error = _refused(t0(tmp_path / "m.gguf", shapes={"blk.0.attn_k.weight": (64, 48)}))
    assert ("wrong_shape", [64, 32], [64, 48]) == (error.code, error.facts["expected"], error.facts["found"])


def test_the_vocabulary_gives_the_embeddings_rows(tmp_path: Path) -> None:
    """A vocabulary of another size than the embedding is refused at the embedding, with both shapes."""
    error = _refused(t0(tmp_path / "m.gguf", set_keys=vocabulary(33)))
    assert ("token_embd.weight", [64, 33], [64, 32]) == (
        error.facts["tensor"],
        error.facts["expected"],
        error.facts["found"],
    )


def test_rotary_frequencies_are_half_the_rotation(tmp_path: Path) -> None:
    """The optional rotary table must have one value per rotated pair."""
    _understand(t0(tmp_path / "m.gguf", add=[("rope_freqs.weight", F32, (8,))])).comparison.require()
    error = _refused(t0(tmp_path / "m.gguf", add=[("rope_freqs.weight", F32, (16,))]))
    assert ("wrong_shape", "rope_freqs.weight") == (error.code, error.facts["tensor"])


def test_old_expert_layout_is_refused(tmp_path: Path) -> None:
    """One tensor per expert is the old layout: the fused one is missing."""
    specs = [(f"blk.0.ffn_gate.{expert}.weight", F32, (64, 128)) for expert in range(4)]
    drop = {f"blk.0.ffn_{name}_exps.weight" for name in ("gate", "up", "down")}
    error = _refused(t0_moe(tmp_path / "m.gguf", drop=drop, add=specs))
    assert ("missing_tensor", "blk.0.ffn_down_exps.weight") == (error.code, error.facts["tensor"])


def test_scales_may_stand_beside_weights(tmp_path: Path) -> None:
    """A scale beside a weight is known for every architecture; one beside nothing is not."""
    scales = [("blk.0.attn_q.scale", F32, (1,)), ("blk.1.ffn_down.input_scale", F32, (1,))]
    _understand(t0(tmp_path / "m.gguf", add=scales)).comparison.require()
    assert _refused(t0(tmp_path / "m.gguf", add=[("blk.0.ssm_in.scale", F32, (1,))])).code == "unexpected_tensor"


def test_the_first_disagreement_in_the_models_order_is_told(tmp_path: Path) -> None:
    """Of several faults the one the reference would meet first is told."""
    path = t0(
        tmp_path / "m.gguf",
        drop={"blk.1.ffn_norm.weight"},
        shapes={"blk.0.attn_k.weight": (64, 48)},
        add=[("foo", F32, (8,))],
    )
    assert "blk.0.attn_k.weight" == _refused(path).facts["tensor"]
