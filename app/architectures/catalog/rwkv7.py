"""RWKV 7: a generalised delta rule with low-rank decay, in-context learning rate, value residual and gate."""

from collections.abc import Iterator

from app.architectures import blocks, recurrent, roles
from app.architectures.blocks import need
from app.architectures.catalog.rwkv6 import EITHER_EPSILON, normed_ends
from app.architectures.descriptor import Architecture, Capabilities, by_layers_and_width
from app.architectures.hparams import HParam, HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.roles import Role

_SIZES = {
    (12, 768): "190M",
    (24, 1024): "450M",
    (24, 2048): "1.5B",
    (28, 1536): "1.5B",
    (28, 3584): "7B",
    (32, 2560): "2.9B",
    (32, 4096): "7B",
    (61, 4096): "14B",
}


def _low_rank(hp: HParams, layer: int, base: Role, into: Role, out: Role, rank: int) -> Iterator[Expected]:
    yield need(base, layer, hp.n_embd)
    yield need(into, layer, hp.n_embd, rank)
    yield need(out, layer, rank, hp.n_embd)


def low_rank_parts(hp: HParams, layer: int) -> Iterator[Expected]:
    """Decay, in-context learning rate and value residual, each a vector with a low-rank part."""
    rate = hp.u32("attention.iclr_lora_rank")
    # the first layer has no value to look back to; what it has there is not used
    residual = hp.u32("attention.value_residual_mix_lora_rank") if layer else rate
    yield from _low_rank(
        hp, layer, roles.TIME_MIX_W0, roles.TIME_MIX_W1, roles.TIME_MIX_W2, hp.u32("attention.decay_lora_rank")
    )
    yield from _low_rank(hp, layer, roles.TIME_MIX_A0, roles.TIME_MIX_A1, roles.TIME_MIX_A2, rate)
    yield from _low_rank(hp, layer, roles.TIME_MIX_V0, roles.TIME_MIX_V1, roles.TIME_MIX_V2, residual)


def mixing(hp: HParams, layer: int) -> Iterator[Expected]:
    """The vectors of the delta rule, and key, value and receptance."""
    for role in (roles.TIME_MIX_K_K, roles.TIME_MIX_K_A, roles.TIME_MIX_R_K):
        yield need(role, layer, hp.n_embd)
    for role in (roles.TIME_MIX_KEY, roles.TIME_MIX_VALUE, roles.TIME_MIX_RECEPTANCE):
        yield need(role, layer, hp.n_embd, hp.n_embd)


def _layer(hp: HParams, layer: int) -> Iterator[Expected]:
    width, n_ff, gate = hp.n_embd, hp.n_ff[0], hp.u32("attention.gate_lora_rank")
    yield from blocks.layer_norm(roles.ATTN_NORM, layer, width)
    yield from blocks.layer_norm(roles.ATTN_NORM_2, layer, width)
    yield from low_rank_parts(hp, layer)
    yield need(roles.TIME_MIX_G1, layer, width, gate)
    yield need(roles.TIME_MIX_G2, layer, gate, width)
    yield need(roles.TIME_MIX_LERP_FUSED, layer, width, 1, 1, 6)
    yield from mixing(hp, layer)
    yield from blocks.layer_norm(roles.TIME_MIX_LN, layer, width)
    yield need(roles.TIME_MIX_OUTPUT, layer, width, width)
    yield need(roles.CHANNEL_MIX_LERP_K, layer, width)
    yield need(roles.CHANNEL_MIX_KEY, layer, width, n_ff)
    yield need(roles.CHANNEL_MIX_VALUE, layer, n_ff, width)


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from normed_ends(hp)
    for layer in range(hp.n_layer):
        yield from _layer(hp, layer)


ARCHITECTURE = Architecture(
    name="rwkv7",
    capabilities=Capabilities(recurrent=True),
    hparams=(
        *EITHER_EPSILON,
        *recurrent.WKV_KEYS,
        HParam("attention.decay_lora_rank", required=True),
        HParam("attention.iclr_lora_rank", required=True),
        HParam("attention.value_residual_mix_lora_rank", required=True),
        HParam("attention.gate_lora_rank", default=0),
    ),
    derive=recurrent.with_wkv,
    manifest=_manifest,
    rope=RopeType.NONE,
    size_name=by_layers_and_width(_SIZES),
    example={
        "context_length": 128,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 256,
        "attention.layer_norm_epsilon": 1e-5,
        "wkv.head_size": 16,
        "attention.decay_lora_rank": 8,
        "attention.iclr_lora_rank": 8,
        "attention.value_residual_mix_lora_rank": 4,
        "attention.gate_lora_rank": 8,
    },
)
