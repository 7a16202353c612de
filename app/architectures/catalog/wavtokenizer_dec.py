"""WavTokenizer decoder: turns audio tokens into a spectrum with convolutions; no language model."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON, bad_value
from app.architectures.descriptor import Architecture
from app.architectures.examples import SMALL
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import no_memory
from app.architectures.roles import Role

_FEATURES = "features_length"
_POSITION_WIDTH, _POSITION_LAYERS = "posnet.embedding_length", "posnet.block_count"
_CONV_WIDTH, _CONV_LAYERS = "convnext.embedding_length", "convnext.block_count"

# the position net is two residual blocks, attention, two residual blocks, and a norm
_ATTENTION, _NORM, _MAX_POSITION_LAYERS = 2, 5, 6


def _derive(hp: HParams) -> HParams:
    layers = hp.u32(_POSITION_LAYERS)
    if layers > min(hp.n_layer_all, _MAX_POSITION_LAYERS):
        raise bad_value(hp.arch, _POSITION_LAYERS, layers, f"at most {min(hp.n_layer_all, _MAX_POSITION_LAYERS)}")
    if hp.u32(_CONV_LAYERS) > hp.n_layer_all:
        raise bad_value(hp.arch, _CONV_LAYERS, hp.u32(_CONV_LAYERS), f"at most {hp.n_layer_all}, the block count")
    if hp.u32(_CONV_WIDTH) != hp.u32(_POSITION_WIDTH):
        raise bad_value(
            hp.arch, _CONV_WIDTH, hp.u32(_CONV_WIDTH), f"{hp.u32(_POSITION_WIDTH)}, the width of the position net"
        )
    return _with_features(hp)


def _with_features(hp: HParams) -> HParams:
    """An embedding is as wide as the features; the embedding length is the output's."""
    features = hp.u32(_FEATURES)
    hp = replace(hp, n_embd=features, n_embd_out_impl=hp.u32("embedding_length"))
    if hp.n_head[0] == 0:
        return hp
    head_k, head_v, n_rot = (
        hp.u32(key) if hp.given(key) else None
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    )
    head_k = features // hp.n_head[0] if head_k is None else head_k
    head_v = features // hp.n_head[0] if head_v is None else head_v
    n_rot = head_k if n_rot is None else n_rot
    return replace(
        hp,
        n_embd_head_k_full=head_k,
        n_embd_head_v_full=head_v,
        n_rot_full=n_rot,
        n_embd_head_k_swa=hp.u32("attention.key_length_swa") if hp.given("attention.key_length_swa") else head_k,
        n_embd_head_v_swa=hp.u32("attention.value_length_swa") if hp.given("attention.value_length_swa") else head_v,
        n_rot_swa=hp.u32("rope.dimension_count_swa") if hp.given("rope.dimension_count_swa") else n_rot,
    )


def _with_bias(role: Role, layer: int, *shape: int, bias: tuple[int, ...]) -> Iterator[Expected]:
    yield need(role, layer, *shape)
    yield need(role.bias, layer, *bias)


def _position_layer(layer: int, width: int) -> Iterator[Expected]:
    column = (1, width)
    if layer in (_ATTENTION, _NORM):
        yield from _with_bias(roles.POS_NET_ATTN_NORM, layer, *column, bias=column)
    if layer == _ATTENTION:
        for role in (
            roles.POS_NET_ATTN_Q,
            roles.POS_NET_ATTN_K,
            roles.POS_NET_ATTN_V,
            roles.POS_NET_ATTN_OUT,
        ):
            yield from _with_bias(role, layer, 1, width, width, bias=column)
    elif layer != _NORM:
        for norm, convolution in (
            (roles.POS_NET_NORM1, roles.POS_NET_CONV1),
            (roles.POS_NET_NORM2, roles.POS_NET_CONV2),
        ):
            yield from _with_bias(norm, layer, *column, bias=column)
            yield from _with_bias(convolution, layer, 3, width, width, bias=column)


def _conv_layer(layer: int, width: int, n_ff: int) -> Iterator[Expected]:
    yield from _with_bias(roles.CONVNEXT_DW, layer, 7, 1, width, bias=(1, width))
    yield from _with_bias(roles.CONVNEXT_NORM, layer, width, bias=(width,))
    yield from _with_bias(roles.CONVNEXT_PW1, layer, width, n_ff, bias=(n_ff,))
    yield from _with_bias(roles.CONVNEXT_PW2, layer, n_ff, width, bias=(width,))
    yield need(roles.CONVNEXT_GAMMA, layer, width)


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    width = hp.u32(_POSITION_WIDTH)
    yield from blocks.embedding(hp)
    yield from _with_bias(roles.CONV1D, 0, 7, hp.n_embd, width, bias=(1, width))
    for layer in range(hp.u32(_POSITION_LAYERS)):
        yield from _position_layer(layer, width)
    yield from blocks.layer_norm(roles.TOKEN_EMBD_NORM, 0, width)
    for layer in range(hp.u32(_CONV_LAYERS)):
        yield from _conv_layer(layer, width, hp.n_ff[0])
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, width)
    yield need(roles.OUTPUT, None, width, hp.n_embd_out)
    yield need(roles.OUTPUT.bias, None, hp.n_embd_out)


ARCHITECTURE = Architecture(
    name="wavtokenizer-dec",
    hparams=(
        HParam(_FEATURES, required=True),
        HParam(_POSITION_WIDTH, required=True),
        HParam(_POSITION_LAYERS, required=True),
        HParam(_CONV_WIDTH, required=True),
        HParam(_CONV_LAYERS, required=True),
        NORM_EPSILON,
        HParam("attention.group_norm_epsilon", Kind.F32, required=True),
        HParam("attention.group_norm_groups", required=True),
    ),
    derive=_derive,
    manifest=_manifest,
    memory=no_memory,
    rope=RopeType.NONE,
    example={
        **SMALL,
        "features_length": 64,
        "block_count": 6,
        "attention.layer_norm_epsilon": 1e-6,
        "attention.group_norm_epsilon": 1e-6,
        "attention.group_norm_groups": 8,
        "posnet.embedding_length": 64,
        "posnet.block_count": 6,
        "convnext.embedding_length": 64,
        "convnext.block_count": 2,
        "attention.causal": False,
    },
)
