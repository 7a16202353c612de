"""Questions that several stages ask of an architecture: each has one name, and here is who answers yes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from app.architectures import roles
from app.architectures.cache_roles import CACHE_R, CACHE_S
from app.architectures.descriptor import Capabilities
from app.architectures.roles import Role
from app.architectures.understanding import Understanding, understand
from app.modelfile.reader import read_model_file
from tests.builders import t0
from tests.examples import example_file
from tests.oracle import Models, records, the_catalog

NOT_RECORDED = {"clip", "gptj", "gemma4-assistant"}
"""What the reference does not load by itself."""

Q_GATE = {"qwen35", "qwen35moe", "qwen3next", "qwen4exp"}
CAPABILITIES: Mapping[str, set[str]] = {
    "recurrent": {"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"},
    "diffusion": {"dream", "llada", "llada-moe", "rnd1"},
    "encoder": {"dflash", "eagle3", "t5", "t5encoder"},
    "draft": {"dflash", "eagle3", "gemma4-assistant"},
    "q_gate": Q_GATE,
    "linear_attention": Q_GATE,
    "v_follows_k": Q_GATE - {"qwen3next"},
    "lone_expert_is_dense": {"hunyuan-dense", "hunyuan_vl"},
}
WITHOUT: Mapping[str, set[str]] = {"flash_attention": {"grok"}, "decoder": {"clip", "t5encoder"}}
RECORDED = {
    "tensor_split": "supports_sm_tensor",
    "recurrent": "is_recurrent",
    "hybrid": "is_hybrid",
    "diffusion": "is_diffusion",
    "encoder": "has_encoder",
    "decoder": "has_decoder",
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded model: what the reference says of it, and what we understand."""

    facts: dict[str, Any]
    understanding: Understanding

    @property
    def name(self) -> str:
        """The architecture's name."""
        return self.understanding.architecture.name

    def rows(self, part: str) -> Iterator[tuple[int, int]]:
        """Layer and rows of every recorded `blk.N.{part}.weight`."""
        for name, _, shape in self.facts["tensors"]:
            block, _, rest = name.removeprefix("blk.").partition(".")
            if rest == f"{part}.weight" and int(block) < self.facts["n_layer_all"]:
                yield int(block), shape[1]


@pytest.fixture(scope="module")
def recorded(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    """Every small model that the reference was asked about."""
    models = Models(oracle_dir, tmp_path_factory.mktemp("models"))
    return [Recorded(facts, models("toy", facts["file"])) for facts in records(oracle_dir, "facts/toy")]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[Understanding]:
    """A small model of every architecture that can be loaded."""
    path = tmp_path_factory.mktemp("examples") / "m.gguf"
    loadable = [architecture for architecture in the_catalog() if architecture.refused is None]
    return [understand(read_model_file(example_file(one, path)), the_catalog()) for one in loadable]


def having(capability: str) -> set[str]:
    """The architectures that answer yes."""
    return {architecture.name for architecture in the_catalog() if getattr(architecture.capabilities, capability)}


def everyone() -> set[str]:
    """All architectures."""
    return {architecture.name for architecture in the_catalog()}


def test_every_capability_is_tested_by_name() -> None:
    """No capability is left out here: each is recorded, or has its set."""
    assert {field.name for field in fields(Capabilities)} == RECORDED.keys() | CAPABILITIES.keys() | WITHOUT.keys()


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_who_has_a_capability(capability: str) -> None:
    """These have it, and no other."""
    assert CAPABILITIES[capability] == having(capability)


@pytest.mark.parametrize("capability", WITHOUT)
def test_who_lacks_a_capability(capability: str) -> None:
    """All have it but these."""
    assert WITHOUT[capability] == everyone() - having(capability)


@pytest.mark.parametrize("capability", RECORDED)
def test_recorded_capabilities_are_the_references(recorded: list[Recorded], capability: str) -> None:
    """Who may be split by tensor, is recurrent or hybrid, has an encoder …: as the reference says of its models."""
    said = {one.name for one in recorded if one.facts[RECORDED[capability]]}
    assert said == having(capability) - NOT_RECORDED
    assert {one.name for one in recorded} == everyone() - NOT_RECORDED


def test_q_carries_a_gate_where_it_is_twice_as_wide(recorded: list[Recorded]) -> None:
    """`q_gate` are exactly those whose Q has twice the rows of its heads; `q_parts` says so."""
    wide = {
        one.name
        for one in recorded
        for layer, rows in one.rows("attn_q")
        if rows == 2 * one.facts["n_head"][layer] * one.facts["n_embd_head_k"][layer] != 0
    }
    assert wide == {one.name for one in the_catalog() if one.capabilities.q_parts == 2} == Q_GATE


def test_gate_and_up_are_fused_where_up_has_twice_the_hidden_units(recorded: list[Recorded]) -> None:
    """`is_fused_up` is true of these architectures' up projections, and of no other's."""
    fused = {
        one.name
        for one in recorded
        for layer, rows in one.rows("ffn_up")
        if one.understanding.hparams.is_fused_up(layer, rows)
    }
    assert {"chatglm", "glm4", "modern-bert", "neo-bert", "phi3", "plamo2", "plamo3"} == fused


def test_a_layer_without_hidden_units_fuses_nothing(tmp_path: Path) -> None:
    """Twice nothing is nothing: a feed-forward of no width is not taken for a fused one."""
    hparams = understand(read_model_file(t0(tmp_path / "m.gguf")), the_catalog()).hparams
    assert [False, True] == [hparams.is_fused_up(0, extent) for extent in (0, 2 * 128)]
    assert not replace(hparams, n_ff=(0, 0)).is_fused_up(0, 0)


def test_latent_attention_is_the_references(recorded: list[Recorded]) -> None:
    """`is_mla` is true of the models that the reference says it of."""
    said = {one.facts["file"] for one in recorded if one.facts["is_mla"]}
    assert said == {one.facts["file"] for one in recorded if one.understanding.hparams.is_mla}
    assert "deepseek2" in {one.name for one in recorded if one.understanding.hparams.is_mla}


def test_linear_layers_are_recurrent_layers_of_delta_rule_models(recorded: list[Recorded]) -> None:
    """`is_linear` holds for the recurrent layers of `linear_attention` models; their widths are their tensors'."""
    for one in recorded:
        hp, can = one.understanding.hparams, one.understanding.architecture.capabilities
        linear = [can.is_linear(hp, layer) for layer in range(hp.n_layer_all)]
        assert linear == [bool(flag) and one.name in Q_GATE for flag in one.facts["is_recr"]], one.name
        keys, values, ratio = hp.linear_widths
        for layer, rows in one.rows("attn_qkv"):
            if linear[layer]:
                assert (rows, values) == (2 * keys + values, ratio * keys), one.facts["file"]


def test_linear_widths_without_key_heads_divide_nothing(tmp_path: Path) -> None:
    """A model without such layers has widths of zero."""
    assert (0, 0, 0) == understand(read_model_file(t0(tmp_path / "m.gguf")), the_catalog()).hparams.linear_widths


def _mirrored(role: Role) -> Callable[[Understanding], bool]:
    def ask(one: Understanding) -> bool:
        rule = one.architecture.split_overrides(one.hparams).policy.get(role)
        return rule is not None and rule.axis == "mirrored"

    return ask


@pytest.mark.parametrize(
    ("ask", "who"),
    [
        pytest.param(
            lambda one: one.architecture.split_overrides(one.hparams).mirrored is not None,
            {"hrm_text"},
            id="aliased cache slots: nothing is cut",
        ),
        pytest.param(_mirrored(CACHE_R), {"lfm2", "lfm2moe"}, id="mirrored short convolution: its past"),
        pytest.param(_mirrored(CACHE_S), {"lfm2", "lfm2moe"}, id="mirrored short convolution: its state"),
        pytest.param(
            lambda one: roles.ATTN_OUT_A in one.architecture.split_overrides(one.hparams).policy,
            {"deepseek4"},
            id="grouped output projection",
        ),
    ],
)
def test_exceptions_to_the_split_are_data(
    examples: list[Understanding], ask: Callable[[Understanding], bool], who: set[str]
) -> None:
    """What only few architectures do stands in their own files, as exceptions by role."""
    assert who == {one.architecture.name for one in examples if ask(one)}


def test_short_convolutions_are_mirrored_wherever_they_are(examples: list[Understanding]) -> None:
    """Every model with short convolutions in its layers mirrors what they remember."""
    with_convolution = {
        one.architecture.name
        for one in examples
        if any(match.expected.role == roles.SHORTCONV_CONV for match in one.comparison.matches)
    }
    assert with_convolution == {one.architecture.name for one in examples if _mirrored(CACHE_R)(one)}
