"""Dream: a diffusion language model on Qwen 2's layers."""

from dataclasses import replace

from app.architectures.catalog.qwen2 import ARCHITECTURE as QWEN2
from app.architectures.descriptor import Capabilities, by_layers, without_causality

ARCHITECTURE = replace(
    QWEN2,
    name="dream",
    capabilities=Capabilities(diffusion=True),
    derive=without_causality,
    size_name=by_layers({28: "7B"}),
)
