"""StarCoder: GPT-2's tensors with one key head for all queries."""

from dataclasses import replace

from app.architectures.catalog.gpt2 import ARCHITECTURE as GPT2
from app.architectures.descriptor import by_layers
from app.architectures.hparams import RopeType

ARCHITECTURE = replace(
    GPT2,
    name="starcoder",
    rope=RopeType.NORM,
    size_name=by_layers({24: "1B", 36: "3B", 40: "15B", 42: "7B"}),
)
