"""GroveMoE: normed Q and K, routed experts and smaller adjugate experts, one for each group of them."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names

_CHUNK_FF = HParam("expert_chunk_feed_forward_length", default=0)
_GROUP_SCALE = HParam("expert_group_scale", Kind.F32, required=True)
_PER_GROUP = HParam("experts_per_group", required=True)


def _derive(hp: HParams) -> HParams:
    if hp.u32(_PER_GROUP.key) == 0:
        raise bad_value(hp.arch, _PER_GROUP.key, 0, "at least 1")
    return mixture.only_experts(hp)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp, n_ff_chunk = mixture.expert_width(hp), hp.u32(_CHUNK_FF.key) or hp.n_embd_head_k()
    n_chunks = hp.n_expert // hp.u32(_PER_GROUP.key)
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.equal_kv_widths(hp))
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_K_NORM, roles.ATTN_Q_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, n_ff_exp)
        yield need(roles.FFN_GATE_CHEXPS, layer, hp.n_embd, n_ff_chunk, n_chunks)
        yield need(roles.FFN_DOWN_CHEXPS, layer, n_ff_chunk, hp.n_embd, n_chunks)
        yield need(roles.FFN_UP_CHEXPS, layer, hp.n_embd, n_ff_chunk, n_chunks)


ARCHITECTURE = Architecture(
    name="grovemoe",
    hparams=(mixture.EXPERT_FF_REQUIRED, _CHUNK_FF, _GROUP_SCALE, _PER_GROUP, RMS_EPSILON),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({48: "30B.A3B"}),
    example={**ROUTED, _GROUP_SCALE.key: 0.05, _PER_GROUP.key: 2},
)
