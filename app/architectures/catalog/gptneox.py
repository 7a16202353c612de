"""GPT-NeoX and Pythia: GPT-2's layers with rotary positions and an output projection of their own."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.gpt2 import ARCHITECTURE as GPT2
from app.architectures.catalog.gpt2 import layers
from app.architectures.descriptor import UNKNOWN_SIZE
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names

_SIZES = {
    (6, 512): "14M",
    (6, 2048): "70M",
    (12, 3072): "160M",
    (16, 8192): "1B",
    (24, 4096): "410M",
    (24, 8192): "1.4B",
    (32, 10240): "2.8B",
    (32, 16384): "6.9B",
    (36, 20480): "12B",
    (44, 24576): "20B",
}


def _size_name(hp: HParams) -> str:
    return _SIZES.get((hp.n_layer, hp.n_ff[0]), UNKNOWN_SIZE)


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    yield from layers(hp)


ARCHITECTURE = replace(
    GPT2,
    name="gptneox",
    hparams=(*GPT2.hparams, HParam("use_parallel_residual", Kind.BOOL, required=True)),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=_size_name,
    example={**GPT2.example, "use_parallel_residual": True},
)
