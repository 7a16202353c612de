"""Granite 4 hybrid: Mamba 2 layers and attention layers, dense or routed feed-forward with a shared expert."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, recurrent, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture, Capabilities
from app.architectures.examples import DENSE, STATE_SPACE
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    hp = recurrent.recurrent_without_keys(recurrent.with_grouped_ssm(hp))
    recurrent.require_expansion_of_two(hp)
    return hp


def _attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    n_q = hp.n_embd_head_k() * hp.n_head[layer]
    yield from blocks.qkv(hp, names, layer, n_q, hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer))
    yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
    yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)


def _feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    n_ff, n_ff_shared = hp.n_ff[0], hp.u32(mixture.SHARED_FF.key)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
    if hp.n_expert == 0:
        yield from blocks.gated_ffn(hp, layer, n_ff)
        yield may(roles.FFN_GATE.bias, layer, n_ff)
        yield may(roles.FFN_DOWN.bias, layer, hp.n_embd)
        yield may(roles.FFN_UP.bias, layer, n_ff)
        return
    yield from mixture.router(hp, layer)
    yield may(roles.FFN_GATE_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff, hp.n_embd, hp.n_expert)
    yield need(roles.FFN_UP_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)
    if n_ff_shared:
        yield from mixture.shared_expert(hp, layer, n_ff_shared)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        if hp.is_recr[layer]:
            yield from recurrent.mamba2(hp, layer, conv_bias=False)
        else:
            yield from _attention(hp, names, layer)
        yield from _feed_forward(hp, layer)


def _size_name(hp: HParams) -> str:
    if hp.n_embd == 1536:
        return "7B.A1B" if hp.n_ff[0] == 512 else "1B"
    return {768: "350M", 2048: "3B", 2560: "3B", 4096: "32B.A9B"}.get(hp.n_embd, UNKNOWN_SIZE)


ARCHITECTURE = Architecture(
    name="granitehybrid",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(
        RMS_EPSILON,
        HParam("logit_scale", Kind.F32),
        HParam("residual_scale", Kind.F32),
        HParam("embedding_scale", Kind.F32),
        HParam("attention.scale", Kind.F32),
        *recurrent.GROUPED_SSM_KEYS,
        mixture.SHARED_FF,
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NORM,
    size_name=_size_name,
    example={
        **DENSE,
        **STATE_SPACE,
        "embedding_length": 64,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_shared_feed_forward_length": 256,
        "attention.head_count_kv": [0, 2],
        "ssm.group_count": 1,
    },
)
