"""OpenELM: heads and feed-forward grow from layer to layer, fused QKV, always a tied output."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    head = hp.n_embd_head_k()
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield from blocks.tied(hp, names)
    for layer in range(hp.n_layer):
        n_head = hp.n_head[layer]
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_QKV, layer, hp.n_embd, (n_head + 2 * hp.n_head_kv[layer]) * head)
        yield need(roles.ATTN_Q_NORM, layer, head)
        yield need(roles.ATTN_K_NORM, layer, head)
        yield need(roles.ATTN_OUT, layer, n_head * head, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[layer])


ARCHITECTURE = Architecture(
    name="openelm",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({16: "270M", 20: "450M", 28: "1B", 36: "3B"}),
    example={
        **DENSE,
        "feed_forward_length": [256, 512],
        "attention.head_count": [4, 8],
        "attention.head_count_kv": [2, 4],
        "attention.key_length": 32,
        "attention.value_length": 32,
    },
)
