"""LFM2 MoE: LFM2 with routed experts after some leading dense layers."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import mixture
from app.architectures.catalog.lfm2 import ARCHITECTURE as LFM2
from app.architectures.catalog.lfm2 import CONV_CACHE, model, with_short_convolution
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import by_layers
from app.architectures.examples import EXPERTS
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    return mixture.experts_after_dense(with_short_convolution(hp))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from model(hp, names, hp.u32(mixture.LEADING_DENSE.key))


ARCHITECTURE = replace(
    LFM2,
    name="lfm2moe",
    hparams=(
        CONV_CACHE,
        RMS_EPSILON,
        mixture.LEADING_DENSE,
        mixture.EXPERT_FF_REQUIRED,
        mixture.GATING_FUNC_REQUIRED,
    ),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({24: "8B.A1B", 40: "24B.A2B"}),
    example={
        **LFM2.example,
        **EXPERTS,
        "leading_dense_block_count": 1,
        "attention.head_count_kv": [0, 2],
        "expert_gating_func": 2,
    },
)
