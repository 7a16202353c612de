"""Granite MoE: Granite with routed experts, and sometimes one that all tokens share."""

from dataclasses import replace

from app.architectures.catalog.granite import ARCHITECTURE as GRANITE
from app.architectures.catalog.granite import SCALES
from app.architectures.descriptor import as_read, by_layers

ARCHITECTURE = replace(
    GRANITE,
    name="granitemoe",
    hparams=SCALES,
    derive=as_read,
    size_name=by_layers({24: "1B.A400M", 32: "3B.A800M"}),
    example={
        **GRANITE.example,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_shared_feed_forward_length": 256,
    },
)
