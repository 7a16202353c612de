"""Nemotron H MoE: Nemotron H whose feed-forward layers are routed experts with a shared one."""

from dataclasses import replace

from app.architectures.catalog.nemotron_h import ARCHITECTURE as NEMOTRON_H
from app.architectures.examples import EXPERTS

ARCHITECTURE = replace(
    NEMOTRON_H,
    name="nemotron_h_moe",
    example={**NEMOTRON_H.example, **EXPERTS, "expert_shared_feed_forward_length": 256},
)
