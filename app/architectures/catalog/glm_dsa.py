"""GLM 5: DeepSeek V3.2's sparse latent attention, with indexers only in some layers of later models."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import latent, mixture
from app.architectures.catalog.deepseek32 import ARCHITECTURE as DEEPSEEK32
from app.architectures.catalog.deepseek32 import SPARSE_KEYS, derive, model
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    latent.own_indexers(hp, ())
    return derive(hp)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from model(hp, names, indexed=False)


ARCHITECTURE = replace(
    DEEPSEEK32,
    name="glm-dsa",
    hparams=(*SPARSE_KEYS, mixture.GATING_FUNC, latent.INDEXER_TYPES),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({78: "744B.A40B"}),
)
