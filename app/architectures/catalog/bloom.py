"""BLOOM: GPT-2's layers with a normed embedding and linear position biases."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.catalog.gpt2 import ARCHITECTURE as GPT2
from app.architectures.catalog.gpt2 import layers, tied_output
from app.architectures.descriptor import by_layers_and_width
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    return replace(hp, use_alibi=True)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.layer_norm(roles.TOKEN_EMBD_NORM, 0, hp.n_embd)
    yield from tied_output(hp, names)
    yield from layers(hp)


ARCHITECTURE = replace(
    GPT2,
    name="bloom",
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers_and_width({(30, 2560): "3B", (30, 4096): "7B"}, {24: "1B"}),
)
