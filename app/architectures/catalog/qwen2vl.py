"""Qwen 2 VL: Qwen 2 with positions of several axes."""

from dataclasses import replace

from app.architectures.catalog.qwen2 import ARCHITECTURE as QWEN2
from app.architectures.descriptor import unknown_size
from app.architectures.hparams import RopeType
from app.architectures.rotary import ROPE_SECTIONS

ARCHITECTURE = replace(
    QWEN2,
    name="qwen2vl",
    # the norm's epsilon is not read here
    hparams=(replace(ROPE_SECTIONS, required=True),),
    rope=RopeType.MROPE,
    size_name=unknown_size,
    example={**QWEN2.example, "rope.dimension_sections": [8, 4, 4, 0]},
)
