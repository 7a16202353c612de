"""T5 encoder: the encoder of a T5 alone, as an embedding model."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, encoder, roles
from app.architectures.blocks import need
from app.architectures.catalog.t5 import ARCHITECTURE as T5
from app.architectures.catalog.t5 import RELATIVE_KEYS
from app.architectures.descriptor import Capabilities, as_read, unknown_size
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.ENC_OUTPUT_NORM, None, hp.n_embd)
    yield from blocks.output(hp, names, norm=False)
    for layer in range(hp.n_layer):
        yield from encoder.relative_layer(hp, layer)


ARCHITECTURE = replace(
    T5,
    name="t5encoder",
    capabilities=Capabilities(encoder=True, decoder=False),
    hparams=RELATIVE_KEYS,
    derive=as_read,
    manifest=_manifest,
    size_name=unknown_size,
)
