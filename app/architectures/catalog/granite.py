"""Granite: Llama's tensors with scaled logits, residuals and embeddings; vision variants inject into early layers."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.catalog.llama import manifest as llama_manifest
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import by_layers_and_width
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
    size_name=by_layers_and_width({(40, 2048): "2B", (40, 2560): "3B", (40, 4096): "8B"}, {32: "3B", 64: "30B"}),
    example={**LLAMA.example, "logit_scale": 8.0},
)
