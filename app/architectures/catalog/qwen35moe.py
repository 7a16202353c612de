"""Qwen3.5 MoE: Qwen3.5 with routed experts and a gated shared one in every layer."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import mixture, recurrent
from app.architectures.catalog.qwen3next import routed_and_shared
from app.architectures.catalog.qwen35 import ARCHITECTURE as QWEN35
from app.architectures.catalog.qwen35 import model
from app.architectures.descriptor import by_layers
from app.architectures.examples import EXPERTS
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    hp = recurrent.recurrent_by_interval(recurrent.with_ssm(mixture.with_expert_widths(hp)))
    mixture.expert_width(hp)
    return hp


def _feed_forward(hp: HParams, names: Names, layer: int, required: bool) -> Iterator[Expected]:
    n_ff_shared = hp.u32(mixture.SHARED_FF.key) or hp.n_ff[0]
    yield from routed_and_shared(hp, names, layer, n_ff_shared, required=required)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from model(hp, names, _feed_forward)


ARCHITECTURE = replace(
    QWEN35,
    name="qwen35moe",
    hparams=(mixture.EXPERT_FF, mixture.SHARED_FF, *QWEN35.hparams),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({40: "35B.A3B", 48: "122B.A10B", 60: "397B.A17B"}),
    example={**QWEN35.example, **EXPERTS, "expert_shared_feed_forward_length": 256},
)
