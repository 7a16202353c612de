"""Hunyuan VL: normed Q and K in dense layers, positions of several axes where the file has sections."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture, Capabilities
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.rotary import ROPE_SECTIONS, uses_mrope

_SIZES = {1024: "0.5B", 2048: "1.8B", 3072: "4B", 4096: "7B"}


def _size_name(hp: HParams) -> str:
    return _SIZES.get(hp.n_embd, UNKNOWN_SIZE)


def _rope(hp: HParams) -> RopeType:
    return RopeType.MROPE if uses_mrope(hp) else RopeType.NEOX


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_K_NORM, roles.ATTN_Q_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="hunyuan_vl",
    capabilities=Capabilities(lone_expert_is_dense=True),
    hparams=(RMS_EPSILON, ROPE_SECTIONS),
    manifest=_manifest,
    rope=_rope,
    size_name=_size_name,
    example={**DENSE, "expert_count": 1, "expert_used_count": 1},
)
