"""Command R7B: Command R's tensors with three sliding-window layers to one full layer."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks
from app.architectures.catalog.command_r import ARCHITECTURE as COMMAND_R
from app.architectures.catalog.command_r import tied_ends
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParam, HParams, Kind, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window


def _derive(hp: HParams) -> HParams:
    return with_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), period=4)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from tied_ends(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = replace(
    COMMAND_R,
    name="cohere2",
    hparams=(
        SWA_PATTERN,
        FREQ_BASE_SWA,
        replace(SLIDING_WINDOW, required=True),
        HParam("logit_scale", Kind.F32, required=True),
        NORM_EPSILON,
    ),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({32: "8B"}),
    example={**COMMAND_R.example, "block_count": 4, "attention.sliding_window": 32, "logit_scale": 0.25},
)
