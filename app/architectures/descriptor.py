"""The descriptor: everything ggufd knows of an architecture, as one value."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from app.architectures.hparams import HParam, HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, Memory, MemoryRequest, require_types
from app.architectures.split import NO_OVERRIDES, SplitOverrides
from app.architectures.standard_memory import standard_memory

UNKNOWN_SIZE = "?B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Membership questions, each asked by this name and answered in the architecture's own file.

    `tensor_split`: may be split by tensor. `recurrent`: all layers keep a recurrent state; `hybrid`: some do.
    `diffusion`: denoises whole sequences. `encoder`, `decoder`: has one. `draft`: proposes tokens for another model.
    `q_gate`: Q carries a gate of its own width, so whole heads of Q are twice as wide. `v_follows_k`: in linear
    attention V is laid out on the scale of K (k0 v0, k1 v1, k0 v2, …) and is cut in runs of K's width.
    `linear_attention`: the layout of delta-rule layers (fused QKV, alpha, beta) applies to recurrent layers.
    `lone_expert_is_dense`: files may count a dense feed-forward as one expert. `flash_attention`: attention may be
    computed in one fused step.
    """

    tensor_split: bool = True
    recurrent: bool = False
    hybrid: bool = False
    diffusion: bool = False
    encoder: bool = False
    decoder: bool = True
    draft: bool = False
    q_gate: bool = False
    v_follows_k: bool = False
    linear_attention: bool = False
    lone_expert_is_dense: bool = False
    flash_attention: bool = True

    @property
    def q_parts(self) -> int:
        """How many parts of its head size a head of Q has: itself, and its gate if it carries one."""
        return 2 if self.q_gate else 1

    def is_linear(self, hparams: HParams, layer: int) -> bool:
        """Whether `layer` computes linear attention, in the layout of delta-rule layers."""
        return self.linear_attention and hparams.is_recr[layer]


def unknown_size(_hparams: HParams) -> str:
    """The name of a size nobody has named."""
    return UNKNOWN_SIZE


def by_layers(names: Mapping[int, str]) -> Callable[[HParams], str]:
    """A size name that follows from the number of layers alone."""

    def size_name(hparams: HParams) -> str:
        return names.get(hparams.n_layer, UNKNOWN_SIZE)

    return size_name


def by_layers_and_width(
    names: Mapping[tuple[int, int], str], otherwise: Mapping[int, str] = MappingProxyType({})
) -> Callable[[HParams], str]:
    """A size name that follows from layers and embedding length together, `otherwise` from the layers alone."""
    by_layers_alone = by_layers(otherwise)

    def size_name(hparams: HParams) -> str:
        return names.get((hparams.n_layer, hparams.n_embd)) or by_layers_alone(hparams)

    return size_name


def as_read(hparams: HParams) -> HParams:
    """Derive nothing beyond what every architecture derives."""
    return hparams


def as_found(hparams: HParams, _names: Names) -> HParams:
    """Conclude nothing from which tensors a file has."""
    return hparams


def without_causality(hparams: HParams) -> HParams:
    """Attention looks both ways, whatever the file says: diffusion models and encoders."""
    return replace(hparams, causal_attn=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture.

    `hparams`: its keys beyond the common ones. `derive`: what follows from them (window patterns, recurrent layers);
    raises MetadataError on contradictions. `observe`: the same, where it depends on which tensors are there.
    `manifest`: every tensor it may have, given the hyperparameters and the names that are in the file, in the
    reference's order. `rope`: rotary type, fixed or following from hyperparameters.
    `split`: exceptions to the standard rules, fixed or following. `memory`: the caches it needs; None: those that its
    capabilities come to. `example`: small metadata without the prefix, from which tests build a file. `refused`: why a
    file of this architecture is known and never loaded, with its code.
    """

    name: str
    capabilities: Capabilities = Capabilities()
    hparams: tuple[HParam, ...] = ()
    derive: Callable[[HParams], HParams] = as_read
    observe: Callable[[HParams, Names], HParams] = as_found
    manifest: Callable[[HParams, Names], Iterator[Expected]]
    rope: RopeType | Callable[[HParams], RopeType] = RopeType.NORM
    size_name: Callable[[HParams], str] = unknown_size
    split: SplitOverrides | Callable[[HParams], SplitOverrides] = NO_OVERRIDES
    memory: Memory | None = None
    example: Mapping[str, Any]
    refused: str | None = None
    refused_code: Literal["not_a_model", "unsupported_architecture"] = "not_a_model"

    def rope_type(self, hparams: HParams) -> RopeType:
        """How this model's rotary positions pair values."""
        return self.rope if isinstance(self.rope, RopeType) else self.rope(hparams)

    def split_overrides(self, hparams: HParams) -> SplitOverrides:
        """This model's exceptions to the rules of the split."""
        return self.split if isinstance(self.split, SplitOverrides) else self.split(hparams)

    def caches(self, hparams: HParams, request: MemoryRequest) -> tuple[CacheTensor, ...]:
        """The cache tensors of a context, in the reference's order. Raises PlanError where it cannot be had."""
        can = self.capabilities
        if not can.flash_attention:
            request = replace(request, flash_attention=False)
        require_types(hparams, request)
        memory = self.memory or standard_memory(
            is_recurrent=can.recurrent, is_hybrid=can.hybrid, is_diffusion=can.diffusion
        )
        return tuple(memory(hparams, request))
