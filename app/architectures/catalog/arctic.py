"""Arctic: a dense feed-forward as wide as the model beside routed experts in every layer."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _size_name(hp: HParams) -> str:
    return "10B+128x3.66B" if (hp.n_expert, hp.n_layer) == (128, 35) else UNKNOWN_SIZE


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_embd)
        yield from mixture.router(hp, layer)
        yield need(roles.FFN_NORM_EXPS, layer, hp.n_embd)
        yield from blocks.experts(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="arctic",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    size_name=_size_name,
    example={**ROUTED, "embedding_length": 128},
)
