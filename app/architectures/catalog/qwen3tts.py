"""Qwen 3 TTS: a talker whose output is an audio codebook of fixed size, not the vocabulary."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog import qwen3
from app.architectures.catalog.qwen3vl import ARCHITECTURE as QWEN3VL
from app.architectures.descriptor import Capabilities
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names

_CODEBOOK = 3072


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield may(roles.OUTPUT, None, hp.n_embd, _CODEBOOK)
    yield from blocks.tied(hp, names)
    yield from qwen3.layers(hp, names)


ARCHITECTURE = replace(
    QWEN3VL,
    name="qwen3tts",
    capabilities=Capabilities(tensor_split=False),
    manifest=_manifest,
)
