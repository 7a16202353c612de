"""Nemotron H: each layer is one thing, a Mamba 2 mixer, attention, or a feed-forward without gate."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from app.architectures import blocks, mixture, recurrent, roles
from app.architectures.blocks import may, need, tensor
from app.architectures.common import NORM_EPSILON, RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import LAYER_NORMED, STATE_SPACE
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.recurrent_memory import hybrid

_LATENT = "moe_latent_size"

_SIZES = by_layers({52: "31B.A3.5B", 56: "9B"})


def _derive(hp: HParams) -> HParams:
    hp = mixture.with_expert_widths(recurrent.with_grouped_ssm(hp))
    trunk = tuple(hp.n_head_kv[layer] == 0 and hp.n_ff[layer] == 0 for layer in range(hp.n_layer))
    hp = replace(hp, is_recr=trunk + (False,) * hp.n_layer_nextn)
    for layer in range(hp.n_layer_all):
        if layer >= hp.n_layer or (hp.n_expert and hp.n_ff[layer] and not hp.is_recr[layer]):
            _expert_width(hp, layer)
    return hp


def _expert_width(hp: HParams, layer: int) -> int:
    """A NextN layer's experts share the first layer's dense width, another's its own."""
    if layer < hp.n_layer:
        return mixture.expert_width(hp, layer)
    first = replace(hp, n_ff=(hp.n_ff[0],) * hp.n_layer_all)
    return mixture.expert_width(first, layer)


def _attention(hp: HParams, names: Names, layer: int, *, required: bool) -> Iterator[Expected]:
    n_q = hp.n_embd_head_k() * hp.n_head[layer]
    yield from blocks.qkv(hp, names, layer, n_q, hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer), required=required)
    yield tensor(roles.ATTN_OUT, layer, n_q, hp.n_embd, required=required)
    yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)


def _experts(hp: HParams, layer: int, *, required: bool) -> Iterator[Expected]:
    """Routed experts without gate, in a latent space of their own where the file has one, and a shared one."""
    n_ff_exp, n_ff_shared = _expert_width(hp, layer), hp.u32(mixture.SHARED_FF.key)
    width = hp.u32(_LATENT) or hp.n_embd
    yield from mixture.router(hp, layer, biased=True, required=required)
    yield may(roles.FFN_LATENT_DOWN, layer, hp.n_embd, width)
    yield may(roles.FFN_LATENT_UP, layer, width, hp.n_embd)
    yield tensor(roles.FFN_DOWN_EXPS, layer, n_ff_exp, width, hp.n_expert, required=required)
    yield tensor(roles.FFN_UP_EXPS, layer, width, n_ff_exp, hp.n_expert, required=required)
    yield tensor(roles.FFN_DOWN_SHEXP, layer, n_ff_shared, hp.n_embd, required=required)
    yield tensor(roles.FFN_UP_SHEXP, layer, hp.n_embd, n_ff_shared, required=required)


def _dense(hp: HParams, layer: int, *, required: bool) -> Iterator[Expected]:
    n_ff = hp.n_ff[layer]
    yield tensor(roles.FFN_DOWN, layer, n_ff, hp.n_embd, required=required)
    yield tensor(roles.FFN_UP, layer, hp.n_embd, n_ff, required=required)
    yield may(roles.FFN_DOWN.bias, layer, hp.n_embd)
    yield may(roles.FFN_UP.bias, layer, n_ff)


def _layer(hp: HParams, names: Names, layer: int, *, required: bool) -> Iterator[Expected]:
    yield tensor(roles.ATTN_NORM, layer, hp.n_embd, required=required)
    if hp.is_recr[layer]:
        yield from recurrent.mamba2(hp, layer, conv_bias=False, required=required)
    elif hp.n_ff[layer] == 0:
        yield from _attention(hp, names, layer, required=required)
    elif hp.n_expert:
        yield from _experts(hp, layer, required=required)
    else:
        yield from _dense(hp, layer, required=required)


def _nextn_head(hp: HParams, layer: int) -> Iterator[Expected]:
    yield need(roles.NEXTN_ENORM, layer, hp.n_embd)
    yield need(roles.NEXTN_HNORM, layer, hp.n_embd)
    yield need(roles.NEXTN_EH_PROJ, layer, 2 * hp.n_embd, hp.n_embd)
    yield need(roles.NEXTN_SHARED_HEAD_NORM, layer, hp.n_embd)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    required = not blocks.trunk_is_missing(hp, names)
    for layer in range(hp.n_layer):
        yield from _layer(hp, names, layer, required=required)
    for layer in range(hp.n_layer, hp.n_layer_all):
        nextn = chain(
            _nextn_head(hp, layer),
            _attention(hp, names, layer, required=True),
            [need(roles.ATTN_POST_NORM, layer, hp.n_embd)],
            _experts(hp, layer, required=True),
        )
        yield from blocks.nextn_unused(nextn, present=True)


def _size_name(hp: HParams) -> str:
    if hp.n_layer == 88:
        # one family routes every layer alike, the other does not
        return "75B.A9B" if len(set(hp.n_expert_used[: hp.n_layer])) > 1 else "120B.A12B"
    return _SIZES(hp)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """Layers that are a feed-forward remember nothing."""
    mixing = [layer for layer in range(hp.n_layer_all) if hp.n_ff[layer] == 0]
    return hybrid(
        hp,
        request,
        attending=[layer for layer in mixing if not hp.is_recr[layer]],
        recurring=[layer for layer in mixing if hp.is_recr[layer] and layer < hp.n_layer],
    )


ARCHITECTURE = Architecture(
    name="nemotron_h",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(
        *recurrent.GROUPED_SSM_KEYS,
        NORM_EPSILON,
        replace(RMS_EPSILON, required=False),
        mixture.EXPERT_FF,
        mixture.SHARED_FF,
        mixture.SHARED_COUNT,
        HParam("expert_weights_norm", Kind.BOOL),
        HParam("expert_weights_scale", Kind.F32),
        HParam(_LATENT),
    ),
    derive=_derive,
    manifest=_manifest,
    memory=_memory,
    rope=RopeType.NONE,
    size_name=_size_name,
    example={
        **LAYER_NORMED,
        **STATE_SPACE,
        "embedding_length": 64,
        "block_count": 3,
        "feed_forward_length": [0, 0, 256],
        "attention.head_count_kv": [0, 2, 0],
        "ssm.group_count": 2,
    },
)
