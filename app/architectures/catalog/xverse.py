"""XVERSE: InternLM2's tensors in other sizes."""

from dataclasses import replace

from app.architectures.catalog.internlm2 import ARCHITECTURE as INTERNLM2
from app.architectures.descriptor import by_layers

ARCHITECTURE = replace(INTERNLM2, name="xverse", size_name=by_layers({32: "7B", 40: "13B", 80: "65B"}))
