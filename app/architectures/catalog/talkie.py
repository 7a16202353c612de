"""Talkie: no weights in its norms, a gain per query head and a scale per layer."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names

_LOGIT_SCALE = HParam("logit_scale", Kind.F32, required=True)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_q, n_k, n_v = blocks.equal_kv_widths(hp)
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    for layer in range(hp.n_layer):
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.ATTN_Q_NORM, layer, 1, hp.n_head[0])
        yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[0])
        yield need(roles.LAYER_OUT_SCALE, layer, 1)


ARCHITECTURE = Architecture(
    name="talkie",
    hparams=(RMS_EPSILON, _LOGIT_SCALE),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({40: "13B"}),
    # a norm per head is cut at any head: heads as wide as a kernel's step keep Q, K and the norms together
    example={
        **DENSE,
        "embedding_length": 512,
        "attention.head_count_kv": 4,
        _LOGIT_SCALE.key: 1.0,
    },
)
