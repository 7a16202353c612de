"""Granite: Llama's tensors with scaled logits, residuals and embeddings; vision variants inject into early layers."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.catalog.llama import manifest as llama_manifest
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import by_layers
from app.architectures.hparams import Form, HParam, HParams, Kind
from app.architectures.manifest import Expected, Names
from app.architectures.mixture import SHARED_FF

SCALES = (
    RMS_EPSILON,
    HParam("logit_scale", Kind.F32, required=True),
    HParam("residual_scale", Kind.F32),
    HParam("embedding_scale", Kind.F32),
    HParam("attention.scale", Kind.F32),
    SHARED_FF,
)
DEEPSTACK = HParam("deepstack_mapping", Kind.I32, form=Form.ARRAY)

_SIZES = by_layers({32: "3B", 64: "30B"})
_SIZES_AT_40 = {2048: "2B", 2560: "3B", 4096: "8B"}


def size_name(hp: HParams) -> str:
    """The size of a Granite model: 40 layers come in three widths."""
    return _SIZES_AT_40.get(hp.n_embd, "?B") if hp.n_layer == 40 else _SIZES(hp)


def with_deepstack(hp: HParams) -> HParams:
    """Count the extra input embeddings that layers take (-1: none). Raises MetadataError for an index out of range."""
    indices = {index for index in hp.array(DEEPSTACK.key) or () if 0 <= index < 2**31}
    for index in sorted(indices):
        if index > len(indices):
            raise bad_value(hp.arch, DEEPSTACK.key, index, f"at most {len(indices)}, the inputs it names")
    return replace(hp, n_deepstack_layers=len(indices))


def manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    """Llama's tensors, and an expert all tokens share where the file gives its width."""
    return llama_manifest(hp, names, hp.u32(SHARED_FF.key))


ARCHITECTURE = replace(
    LLAMA,
    name="granite",
    hparams=(*SCALES, DEEPSTACK),
    derive=with_deepstack,
    manifest=manifest,
    size_name=size_name,
    example={**LLAMA.example, "logit_scale": 8.0},
)
