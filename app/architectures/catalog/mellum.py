"""Mellum 2: Qwen 3 MoE's layers, three with a window to one without, and an output of its own."""

from collections.abc import Iterator

from app.architectures import blocks, mixture
from app.architectures.catalog import qwen3moe
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, optional_window


def _derive(hp: HParams) -> HParams:
    return mixture.only_experts(optional_window(hp, period=4))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    yield from qwen3moe.layers(hp, names)


ARCHITECTURE = Architecture(
    name="mellum",
    hparams=(RMS_EPSILON, mixture.EXPERT_FF_REQUIRED, SLIDING_WINDOW, SWA_PATTERN, FREQ_BASE_SWA),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({28: "12B.A2.5B"}),
    example={**qwen3moe.ARCHITECTURE.example, "block_count": 4, "attention.sliding_window": 32},
)
