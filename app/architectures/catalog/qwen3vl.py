"""Qwen 3 VL: Qwen 3 with positions of several axes and image features added to its first layers."""

from dataclasses import replace

from app.architectures.catalog import qwen3
from app.architectures.descriptor import by_layers_and_width
from app.architectures.hparams import HParam, HParams, RopeType
from app.architectures.rotary import ROPE_SECTIONS

DEEPSTACK_LAYERS = HParam("n_deepstack_layers")


def with_deepstack(hp: HParams) -> HParams:
    """The layers that take image features beside the embedding."""
    return replace(hp, n_deepstack_layers=hp.u32(DEEPSTACK_LAYERS.key))


ARCHITECTURE = replace(
    qwen3.ARCHITECTURE,
    name="qwen3vl",
    hparams=(DEEPSTACK_LAYERS, replace(ROPE_SECTIONS, required=True), *qwen3.ARCHITECTURE.hparams),
    derive=with_deepstack,
    rope=RopeType.IMROPE,
    size_name=by_layers_and_width({(36, 2560): "4B"}, {28: "1.7B", 36: "8B", 64: "32B"}),
    example={**qwen3.ARCHITECTURE.example, "n_deepstack_layers": 1, "rope.dimension_sections": [24, 20, 20, 0]},
)
