"""Qwen 3 VL MoE: Qwen 3 MoE with positions of several axes and image features added to its first layers."""

from dataclasses import replace

from app.architectures.catalog.qwen3moe import ARCHITECTURE as QWEN3MOE
from app.architectures.catalog.qwen3vl import DEEPSTACK_LAYERS, with_deepstack
from app.architectures.hparams import HParams, RopeType
from app.architectures.rotary import ROPE_SECTIONS


def _derive(hp: HParams) -> HParams:
    return with_deepstack(QWEN3MOE.derive(hp))


ARCHITECTURE = replace(
    QWEN3MOE,
    name="qwen3vlmoe",
    hparams=(DEEPSTACK_LAYERS, replace(ROPE_SECTIONS, required=True), *QWEN3MOE.hparams),
    derive=_derive,
    rope=RopeType.IMROPE,
    example={**QWEN3MOE.example, "n_deepstack_layers": 1, "rope.dimension_sections": [8, 4, 4, 0]},
)
