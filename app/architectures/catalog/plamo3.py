"""PLaMo 3: fused QKV, post-norms, gate and up fused, a sliding window on seven of eight layers."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParam, HParams, Kind, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import SLIDING_WINDOW, SWA_PATTERN, with_window


def _derive(hp: HParams) -> HParams:
    n_swa = hp.u32(SLIDING_WINDOW.key)
    return with_window(hp, SwaType.STANDARD, n_swa, period=8) if n_swa else replace(hp, swa_type=SwaType.NONE)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    head_k, head_v = hp.n_embd_head_k(), hp.n_embd_head_v()
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        n_head, n_kv, n_ff = hp.n_head[layer], hp.n_head_kv[layer], hp.n_ff[layer]
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_QKV, layer, hp.n_embd, (n_head + n_kv) * head_k + n_kv * head_v)
        yield need(roles.ATTN_Q_NORM, layer, head_k)
        yield need(roles.ATTN_K_NORM, layer, head_k)
        yield need(roles.ATTN_OUT, layer, n_head * head_v, hp.n_embd)
        yield need(roles.ATTN_POST_NORM.part(""), layer, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_POST_NORM.part(""), layer, hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, 2 * n_ff)
        yield need(roles.FFN_DOWN, layer, n_ff, hp.n_embd)


ARCHITECTURE = Architecture(
    name="plamo3",
    hparams=(RMS_EPSILON, SLIDING_WINDOW, SWA_PATTERN, HParam("rope.freq_base_swa", Kind.F32)),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({24: "2B"}),
    example={
        **DENSE,
        "block_count": 3,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": 2,
    },
)
