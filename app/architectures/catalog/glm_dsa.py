"""GLM 5: DeepSeek V3.2's sparse latent attention, with indexers only in some layers of later models."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import latent, mixture
from app.architectures.catalog.deepseek32 import ARCHITECTURE as DEEPSEEK32
from app.architectures.catalog.deepseek32 import SPARSE_KEYS, derive, memory, model
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest

_LONG_CONTEXT = 1048576  # with it came indexers that layers share
_LISTED = 78  # layers whose sharing files need not tell


def _derive(hp: HParams) -> HParams:
    latent.own_indexers(hp, ())
    return derive(hp)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from model(hp, names, indexed=False)


def _indexers(hp: HParams) -> tuple[bool, ...]:
    """Which layers have an indexer of their own: all in earlier models, the first three and every fourth in later."""
    later = hp.n_ctx_train >= _LONG_CONTEXT
    default = [not later or layer < 3 or (layer % 4 == 2 and layer < _LISTED) for layer in range(hp.n_layer)]
    return latent.own_indexers(hp, default)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    return memory(hp, request, [layer for layer, own in enumerate(_indexers(hp)) if own])


ARCHITECTURE = replace(
    DEEPSEEK32,
    name="glm-dsa",
    hparams=(*SPARSE_KEYS, mixture.GATING_FUNC, latent.INDEXER_TYPES),
    derive=_derive,
    manifest=_manifest,
    memory=_memory,
    size_name=by_layers({78: "744B.A40B"}),
)
