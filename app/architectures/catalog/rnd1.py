"""RND1: a diffusion language model on Qwen 3 MoE's layers."""

from dataclasses import replace

from app.architectures.catalog.qwen3moe import ARCHITECTURE as QWEN3MOE
from app.architectures.descriptor import Capabilities, by_layers, without_causality
from app.architectures.hparams import HParams


def _derive(hp: HParams) -> HParams:
    return without_causality(QWEN3MOE.derive(hp))


ARCHITECTURE = replace(
    QWEN3MOE,
    name="rnd1",
    capabilities=Capabilities(diffusion=True),
    derive=_derive,
    size_name=by_layers({48: "30B.A3B"}),
)
