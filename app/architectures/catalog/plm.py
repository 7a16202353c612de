"""PLM: latent keys and values with a plain query, a feed-forward without gate, always a tied output."""

from collections.abc import Iterator

from app.architectures import blocks, latent, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    sizes = latent.sizes(hp, q_rank=0)
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield from blocks.tied(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from sizes.queries(layer)
        yield from sizes.compressed(layer)
        yield from sizes.norms(layer)
        yield from sizes.fused(layer)
        yield from sizes.output(layer)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="plm",
    hparams=(RMS_EPSILON, latent.KV_RANK),
    manifest=_manifest,
    size_name=by_layers({32: "1.8B"}),
    example={
        **DENSE,
        "attention.head_count_kv": 4,
        "attention.key_length": 48,
        "attention.value_length": 32,
        "attention.kv_lora_rank": 32,
        "rope.dimension_count": 16,
    },
)
