"""RWKV 6: time mixing with data-dependent decay, channel mixing, no attention."""

from collections.abc import Iterator

from app.architectures import blocks, recurrent, roles
from app.architectures.blocks import may, need
from app.architectures.common import NORM_EPSILON, RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers_and_width
from app.architectures.hparams import HParam, HParams, RopeType
from app.architectures.manifest import Expected, Names

EITHER_EPSILON = tuple(HParam(key.key, key.kind) for key in (NORM_EPSILON, RMS_EPSILON))

_LERPS = (
    roles.TIME_MIX_LERP_W,
    roles.TIME_MIX_LERP_K,
    roles.TIME_MIX_LERP_V,
    roles.TIME_MIX_LERP_R,
    roles.TIME_MIX_LERP_G,
)


def time_mix_lora(hp: HParams, layer: int) -> Iterator[Expected]:
    """The low-rank pair that decides how far each token is mixed with the one before."""
    extra = hp.u32("time_mix_extra_dim")
    yield need(roles.TIME_MIX_W1, layer, hp.n_embd, 5 * extra)
    yield need(roles.TIME_MIX_W2, layer, extra, hp.n_embd, 5)
    yield need(roles.TIME_MIX_LERP_X, layer, hp.n_embd)


def decay(hp: HParams, layer: int) -> Iterator[Expected]:
    """The decay and its low-rank, data-dependent part."""
    extra = hp.u32("time_decay_extra_dim")
    yield need(roles.TIME_MIX_DECAY, layer, hp.n_embd)
    yield need(roles.TIME_MIX_DECAY_W1, layer, hp.n_embd, extra)
    yield need(roles.TIME_MIX_DECAY_W2, layer, extra, hp.n_embd)


def _lerps(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    fused = roles.TIME_MIX_LERP_FUSED
    # apart or fused, but the first of those apart cannot be missing with the fused one
    first = Expected(
        role=_LERPS[0],
        layer=layer,
        shape=(hp.n_embd,),
        required=fused.tensor_name(layer) not in names,
        fused=fused,
    )
    yield first
    for role in _LERPS[1:]:
        yield may(role, layer, hp.n_embd)
    yield may(fused, layer, hp.n_embd, 1, 1, 5)


def _layer(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    width, n_ff, head = hp.n_embd, hp.n_ff[0], hp.wkv_head_size
    yield from blocks.layer_norm(roles.ATTN_NORM, layer, width)
    yield from blocks.layer_norm(roles.ATTN_NORM_2, layer, width)
    yield from time_mix_lora(hp, layer)
    yield from _lerps(hp, names, layer)
    yield need(roles.TIME_MIX_FIRST, layer, head, width // head)
    yield from decay(hp, layer)
    for role in (roles.TIME_MIX_KEY, roles.TIME_MIX_VALUE, roles.TIME_MIX_RECEPTANCE, roles.TIME_MIX_GATE):
        yield need(role, layer, width, width)
    yield from blocks.layer_norm(roles.TIME_MIX_LN, layer, width)
    yield need(roles.TIME_MIX_OUTPUT, layer, width, width)
    yield need(roles.CHANNEL_MIX_LERP_K, layer, width)
    yield need(roles.CHANNEL_MIX_LERP_R, layer, width)
    yield need(roles.CHANNEL_MIX_KEY, layer, width, n_ff)
    yield need(roles.CHANNEL_MIX_VALUE, layer, n_ff, width)
    yield need(roles.CHANNEL_MIX_RECEPTANCE, layer, width, width)


def normed_ends(hp: HParams) -> Iterator[Expected]:
    """Embedding with a layer norm of the first block, output with one of its own."""
    yield from blocks.embedding(hp)
    yield from blocks.layer_norm(roles.TOKEN_EMBD_NORM, 0, hp.n_embd)
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from normed_ends(hp)
    for layer in range(hp.n_layer):
        yield from _layer(hp, names, layer)


ARCHITECTURE = Architecture(
    name="rwkv6",
    capabilities=Capabilities(recurrent=True),
    hparams=(
        *EITHER_EPSILON,
        *recurrent.WKV_KEYS,
        HParam("time_mix_extra_dim", required=True),
        HParam("time_decay_extra_dim", required=True),
        HParam("rescale_every_n_layers"),
    ),
    derive=recurrent.with_wkv_heads,
    manifest=_manifest,
    rope=RopeType.NONE,
    size_name=by_layers_and_width({(32, 2560): "3B", (32, 4096): "7B"}, {24: "1.6B", 61: "14B", 64: "32B"}),
    example={
        "context_length": 128,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 256,
        "attention.layer_norm_epsilon": 1e-5,
        "wkv.head_size": 16,
        "time_mix_extra_dim": 16,
        "time_decay_extra_dim": 16,
    },
)
