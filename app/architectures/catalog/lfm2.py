"""LFM2: gated short convolutions with some attention layers between them, a norm on the embedding as output norm."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, mixture, recurrent, roles
from app.architectures.blocks import may, need
from app.architectures.cache_roles import CACHE_R, CACHE_S
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture, Capabilities
from app.architectures.examples import DENSE
from app.architectures.hparams import HParam, HParams, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.split import PolicyRule, SplitOverrides
from app.architectures.window import SLIDING_WINDOW

CONV_CACHE = HParam("shortconv.l_cache", required=True)

_SIZES = {2560: "230M", 4608: "350M", 6912: "700M", 8192: "1.2B", 10752: "2.6B"}


def with_short_convolution(hp: HParams) -> HParams:
    """Layers without key heads are short convolutions. Raises MetadataError bad_value where K and V differ."""
    hp = recurrent.recurrent_without_keys(hp)
    if not all(hp.is_recr[: hp.n_layer]) and hp.n_embd_k_gqa() != hp.n_embd_v_gqa():
        raise bad_value(
            hp.arch, "attention.value_length", hp.n_embd_head_v(), f"{hp.n_embd_head_k()}, the length of a key"
        )
    return replace(hp, n_shortconv_l_cache=hp.u32(CONV_CACHE.key))


def _derive(hp: HParams) -> HParams:
    hp = with_short_convolution(hp)
    n_swa = hp.u32(SLIDING_WINDOW.key)
    if n_swa == 0:
        return hp
    windowed = tuple(not recr for recr in hp.is_recr[: hp.n_layer]) + (False,) * hp.n_layer_nextn
    return replace(hp, swa_type=SwaType.STANDARD, n_swa=n_swa, is_swa=windowed)


def _feed_forward(hp: HParams, layer: int, dense_layers: int) -> Iterator[Expected]:
    if layer < dense_layers:
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        return
    yield from mixture.router(hp, layer)
    yield from blocks.experts(hp, layer, hp.n_ff_exp[0])
    yield need(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)


def model(hp: HParams, names: Names, dense_layers: int) -> Iterator[Expected]:
    """The whole model, with experts from layer `dense_layers` on."""
    head = hp.n_embd_head_k_full
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM_LFM2, None, hp.n_embd)
    yield from blocks.output(hp, names, norm=False)
    for layer in range(hp.n_layer):
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from _feed_forward(hp, layer, dense_layers)
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        if hp.is_recr[layer]:
            yield from recurrent.short_convolution(hp, layer)
            continue
        yield need(roles.ATTN_Q_NORM, layer, head)
        yield need(roles.ATTN_K_NORM, layer, head)
        yield from blocks.qkv(hp, names, layer, hp.n_embd, hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer))
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
    # the projection of the late-interaction embedding models built on it
    yield may(roles.DENSE_2_OUT, None, hp.n_embd, hp.n_embd_out)
    yield may(roles.DENSE_2_OUT.bias, None, hp.n_embd_out)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from model(hp, names, hp.n_layer)


def _size_name(hp: HParams) -> str:
    return _SIZES.get(hp.n_ff[0], UNKNOWN_SIZE)


# short convolutions run whole on every device
_MIRRORED = PolicyRule(axis="mirrored", why="the convolution is mirrored, and so is what it remembers")

ARCHITECTURE = Architecture(
    name="lfm2",
    capabilities=Capabilities(hybrid=True),
    hparams=(CONV_CACHE, RMS_EPSILON, SLIDING_WINDOW),
    derive=_derive,
    manifest=_manifest,
    split=SplitOverrides(policy={CACHE_R: _MIRRORED, CACHE_S: _MIRRORED}),
    rope=RopeType.NEOX,
    size_name=_size_name,
    example={**DENSE, "attention.head_count_kv": [2, 0], "shortconv.l_cache": 3},
)
