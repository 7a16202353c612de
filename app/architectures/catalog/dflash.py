"""DFlash: a draft that denoises a block of tokens from its target's hidden states, on a plain or a grouped backbone."""

from collections.abc import Iterator

from app.architectures import blocks, latent, mixture, roles, rotary, streams
from app.architectures.attention_memory import every_layer, standard_attention, window_pair
from app.architectures.blocks import may, need
from app.architectures.catalog.deepseek4 import (
    COMPRESS_RATIOS,
    GROUP_COUNT,
    GROUPED_SPLIT,
    OUTPUT_RANK,
    grouped_attention,
    require_grouped,
    routed_and_shared,
    windowed_everywhere,
)
from app.architectures.common import RMS_EPSILON, bad_value, require
from app.architectures.descriptor import Architecture, Capabilities
from app.architectures.examples import DENSE
from app.architectures.hparams import Form, HParam, HParams, Kind, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.split import NO_OVERRIDES, SplitOverrides
from app.architectures.window import SLIDING_WINDOW, given_window

_TARGET_LAYERS, _PATTERN = "target_layers", "attention.sliding_window_pattern"
_KERNEL, _CONV_GROUP = "conv_kernel_size", "conv_group_size"
_SELECTOR_RANK, _SELECTOR_TOP = "selector_rank", "selector_top_k"

# what a backbone with residual streams cannot do without
_GROUPED_KEYS = (
    latent.Q_RANK.key,
    SLIDING_WINDOW.key,
    mixture.EXPERT_FF.key,
    mixture.SHARED_COUNT.key,
    mixture.WEIGHTS_SCALE.key,
    mixture.WEIGHTS_NORM.key,
    mixture.GATING_FUNC.key,
    "swiglu_clamp_exp",
    GROUP_COUNT,
    OUTPUT_RANK,
    "hyper_connection.sinkhorn_iterations",
    "hyper_connection.epsilon",
)


def _is_grouped(hp: HParams) -> bool:
    return hp.u32(streams.STREAM_COUNT) > 0


def _derive(hp: HParams) -> HParams:
    n_swa = hp.u32(SLIDING_WINDOW.key)
    if not _is_grouped(hp):
        if n_swa == 0:
            return hp
        require(hp, _PATTERN)
        return given_window(hp, SwaType.STANDARD, n_swa, hp.array(_PATTERN) or ())
    require(hp, *_GROUPED_KEYS)
    require_grouped(hp)
    for ratio in (hp.array(COMPRESS_RATIOS) or ())[: hp.n_layer_all]:
        if ratio:
            raise bad_value(hp.arch, COMPRESS_RATIOS, ratio, "0: a draft compresses no keys")
    if n_swa == 0:
        raise bad_value(hp.arch, SLIDING_WINDOW.key, 0, "at least 1")
    return windowed_everywhere(mixture.with_expert_widths(hp))


def _has_selector(names: Names) -> bool:
    return roles.DFLASH_SELECTOR_HIDDEN.tensor_name() in names


def _observe(hp: HParams, names: Names) -> HParams:
    """A draft with a selector needs the sizes of it and of the convolutions that come with it."""
    if not _has_selector(names):
        return hp
    for key in (_SELECTOR_RANK, "block_size", _SELECTOR_TOP, _KERNEL, _CONV_GROUP):
        if hp.u32(key) == 0:
            raise bad_value(hp.arch, key, 0, "at least 1, the draft has a selector")
    if hp.n_embd % hp.u32(_CONV_GROUP):
        raise bad_value(hp.arch, _CONV_GROUP, hp.u32(_CONV_GROUP), f"a divisor of {hp.n_embd}, the embedding length")
    top = hp.u32(_SELECTOR_TOP)
    if hp.n_embd < top * (top + 1):
        raise bad_value(hp.arch, _SELECTOR_TOP, top, f"a lattice of at most {hp.n_embd} values")
    return hp


def draft_vocabulary(hp: HParams, names: Names) -> int:
    """Tokens the draft can propose: the length of its map to the target's, where it has one."""
    found = names.get(roles.D2T.part("").tensor_name())
    return found.shape[0] if found is not None else hp.n_vocab


def draft_map(hp: HParams, names: Names) -> Iterator[Expected]:
    """The map from draft tokens to the target's, where the file has one."""
    yield may(roles.D2T.part(""), None, draft_vocabulary(hp, names))


def _markov_head(hp: HParams, names: Names, n_draft: int) -> Iterator[Expected]:
    found = names.get(roles.DSPARK_MARKOV_W1.tensor_name())
    if found is None:
        return
    rank = found.shape[0]
    yield need(roles.DSPARK_MARKOV_W1, None, rank, hp.n_vocab)
    yield need(roles.DSPARK_MARKOV_W2, None, rank, n_draft)
    yield may(roles.DSPARK_MARKOV_W2.scale, None, 1)
    yield may(roles.DSPARK_CONF_PROJ, None, hp.n_embd + rank)
    yield may(roles.DSPARK_CONF_PROJ.bias, None, 1)


def _selector(hp: HParams) -> Iterator[Expected]:
    rank = hp.u32(_SELECTOR_RANK)
    yield need(roles.DFLASH_SELECTOR_PREV, None, rank, hp.n_vocab)
    yield need(roles.DFLASH_SELECTOR_NEXT, None, rank, hp.n_vocab)
    yield need(roles.DFLASH_SELECTOR_HIDDEN, None, hp.n_embd, rank)


def _output(hp: HParams, names: Names, n_draft: int) -> Iterator[Expected]:
    """A head of the draft's own, its embedding again, or neither: then the target's is used."""
    yield may(roles.OUTPUT, None, hp.n_embd, n_draft)
    if roles.OUTPUT.tensor_name() not in names and roles.TOKEN_EMBD.tensor_name() in names:
        yield Expected(role=roles.OUTPUT_TIED, layer=None, shape=(hp.n_embd, n_draft), copy=True)


def _grouped_layer(hp: HParams, layer: int) -> Iterator[Expected]:
    yield from grouped_attention(hp, layer)
    yield from mixture.router(hp, layer, biased=True)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield from routed_and_shared(hp, layer)


def _convolutions(hp: HParams, layer: int) -> Iterator[Expected]:
    kernel = hp.u32(_KERNEL)
    projected = 2 * kernel * (hp.n_embd // hp.u32(_CONV_GROUP))
    for base, projection in (
        (roles.DFLASH_ATTN_CONV_BASE, roles.DFLASH_ATTN_CONV_PROJ),
        (roles.DFLASH_FFN_CONV_BASE, roles.DFLASH_FFN_CONV_PROJ),
    ):
        yield need(base.part(""), layer, hp.n_embd, kernel, 2)
        yield need(projection, layer, hp.n_embd, projected)


def _plain_layer(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    # sizes are the first layer's throughout
    head, n_head = hp.n_embd_head_k(), hp.n_head[0]
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield need(roles.ATTN_Q, layer, hp.n_embd, head * n_head)
    yield need(roles.ATTN_K, layer, hp.n_embd, hp.n_embd_k_gqa())
    yield may(roles.ATTN_V, layer, hp.n_embd, hp.n_embd_v_gqa())
    yield need(roles.ATTN_OUT, layer, head * n_head, hp.n_embd)
    yield need(roles.ATTN_Q_NORM, layer, head)
    yield need(roles.ATTN_K_NORM, layer, head)
    yield may(roles.ATTN_POST_NORM, layer, hp.n_embd)
    yield may(roles.FFN_POST_NORM, layer, hp.n_embd)
    yield may(roles.LAYER_OUT_SCALE, layer, 1)
    yield from blocks.rotary_factors(layer, head, roles.ROPE_FREQS)
    yield may(roles.ATTN_SINKS, layer, n_head)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
    if _has_selector(names):
        yield from _convolutions(hp, layer)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_draft = draft_vocabulary(hp, names)
    n_target = len(hp.array(_TARGET_LAYERS) or ()) * hp.n_embd
    yield may(roles.TOKEN_EMBD, None, hp.n_embd, hp.n_vocab)
    yield from draft_map(hp, names)
    yield from _markov_head(hp, names, n_draft)
    if _has_selector(names):
        yield from _selector(hp)
    yield need(roles.FC, None, n_target, hp.n_embd)
    yield may(roles.FC.scale, None, 1)
    yield need(roles.ENC_OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield from _output(hp, names, n_draft)
    if _is_grouped(hp):
        yield from streams.head(hp)
    for layer in range(hp.n_layer):
        yield from _grouped_layer(hp, layer) if _is_grouped(hp) else _plain_layer(hp, names, layer)


def _rope(hp: HParams) -> RopeType:
    if any(rotary.sections(hp)):
        return RopeType.MROPE
    return RopeType.NORM if _is_grouped(hp) else RopeType.NEOX


def _split(hp: HParams) -> SplitOverrides:
    return GROUPED_SPLIT if _is_grouped(hp) else NO_OVERRIDES


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    if _is_grouped(hp):
        return window_pair(hp, request, layers=every_layer(hp))
    return standard_attention(hp, request)


ARCHITECTURE = Architecture(
    name="dflash",
    capabilities=Capabilities(encoder=True, draft=True),
    hparams=(
        HParam("embedding_scale", Kind.F32),
        HParam("attention.scale", Kind.F32),
        HParam("attention.value_scale", Kind.F32),
        HParam("hidden_activation", Kind.STRING, choices=("gelu", "gelu_pytorch_tanh", "silu")),
        RMS_EPSILON,
        HParam("logit_scale", Kind.F32),
        HParam("final_logit_softcapping", Kind.F32),
        rotary.ROPE_SECTIONS,
        HParam("block_size", default=0),
        HParam(_KERNEL, default=0),
        HParam(_CONV_GROUP, default=0),
        HParam(_SELECTOR_RANK, default=0),
        HParam(_SELECTOR_TOP, default=0),
        HParam(_TARGET_LAYERS, Kind.I32, Form.ARRAY, required=True),
        HParam(streams.STREAM_COUNT, default=0),
        HParam(latent.Q_RANK.key),
        SLIDING_WINDOW,
        HParam(_PATTERN, form=Form.ARRAY),
        mixture.EXPERT_FF,
        HParam(mixture.SHARED_COUNT.key),
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        HParam(mixture.GATING_FUNC.key),
        HParam("swiglu_clamp_exp", Kind.F32, Form.PER_LAYER),
        HParam("swiglu_clamp_shexp", Kind.F32, Form.PER_LAYER),
        HParam(GROUP_COUNT),
        HParam(OUTPUT_RANK),
        HParam("hyper_connection.sinkhorn_iterations"),
        HParam("hyper_connection.epsilon", Kind.F32),
        HParam(COMPRESS_RATIOS, form=Form.ARRAY),
    ),
    derive=_derive,
    observe=_observe,
    manifest=_manifest,
    memory=_memory,
    rope=_rope,
    split=_split,
    example={
        **DENSE,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [True, False],
        "target_layers": [1, 3],
        "block_size": 16,
    },
)
