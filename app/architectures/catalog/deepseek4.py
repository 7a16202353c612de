"""DeepSeek V4: one shared key per token, compressed beside a window, a grouped output projection, residual streams."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, latent, mixture, roles, streams
from app.architectures.blocks import may, need
from app.architectures.cache_roles import CACHE_INDEXER_K, CACHE_K, CACHE_V
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.compressed_memory import compressed
from app.architectures.descriptor import Architecture, Capabilities
from app.architectures.examples import INDEXER, ROUTED
from app.architectures.hparams import Form, HParam, HParams, Kind, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.split import Cut, PolicyRule, SplitOverrides
from app.architectures.window import SLIDING_WINDOW
from app.errors import PlanError

GROUP_COUNT, OUTPUT_RANK = "attention.output_group_count", "attention.output_lora_rank"
COMPRESS_RATIOS = "attention.compress_ratios"
_HASH_LAYERS = "hash_layer_count"
SQRT_SOFTPLUS = 4  # LLAMA_EXPERT_GATING_FUNC_TYPE_SQRT_SOFTPLUS

_OVERLAPPING, _FAR = 4, 128  # the compression ratios there are, beside 0: none


def windowed_everywhere(hp: HParams) -> HParams:
    """A window on every layer, of the block that proposes tokens too."""
    n_swa = hp.u32(SLIDING_WINDOW.key)
    return replace(hp, swa_type=SwaType.STANDARD, n_swa=n_swa, is_swa=(True,) * hp.n_layer_all)


def require_grouped(hp: HParams) -> None:
    """Refuse what the grouped output projection or the router cannot be. Raises MetadataError bad_value."""
    if hp.u32(GROUP_COUNT) == 0:
        raise bad_value(hp.arch, GROUP_COUNT, 0, "at least 1")
    gating = hp.u32(mixture.GATING_FUNC.key)
    if gating != SQRT_SOFTPLUS:
        raise bad_value(hp.arch, mixture.GATING_FUNC.key, gating, f"{SQRT_SOFTPLUS}, the root of a softplus")


def _derive(hp: HParams) -> HParams:
    require_grouped(hp)
    ratios = hp.array(COMPRESS_RATIOS) or ()
    if len(ratios) < hp.n_layer_all:
        raise bad_value(hp.arch, COMPRESS_RATIOS, len(ratios), f"at least {hp.n_layer_all} elements, one per block")
    for ratio in ratios[: hp.n_layer_all]:
        if ratio not in (0, _OVERLAPPING, _FAR):
            raise bad_value(hp.arch, COMPRESS_RATIOS, ratio, f"0, {_OVERLAPPING} or {_FAR}")
    hp = windowed_everywhere(mixture.with_expert_widths(hp))
    return replace(hp, n_embd_out_impl=hp.u32(streams.STREAM_COUNT) * hp.n_embd)


def _observe(hp: HParams, names: Names) -> HParams:
    """NextN layers that the metadata promises and the file lacks do not count."""
    present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
    return hp if present else replace(hp, n_layer_nextn=0)


def grouped_attention(hp: HParams, layer: int) -> Iterator[Expected]:
    """Attention with a narrow query, one key that is the value too, and an output projection in groups of heads."""
    n_head, head, q_rank = hp.n_head[0], hp.n_embd_head_k(), hp.u32(latent.Q_RANK.key)
    groups, rank = hp.u32(GROUP_COUNT), hp.u32(OUTPUT_RANK)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield need(roles.ATTN_SINKS, layer, n_head)
    yield need(roles.ATTN_Q_A, layer, hp.n_embd, q_rank)
    yield need(roles.ATTN_Q_A_NORM, layer, q_rank)
    yield need(roles.ATTN_Q_B, layer, q_rank, n_head * head)
    yield need(roles.ATTN_KV, layer, hp.n_embd, head)
    yield need(roles.ATTN_KV_NORM, layer, head)
    # files hold the groups in one matrix; each is a matrix of its own
    yield Expected(role=roles.ATTN_OUT_A, layer=layer, shape=(n_head * head // groups, rank, groups), reshaped=True)
    yield need(roles.ATTN_OUT_B, layer, groups * rank, hp.n_embd)
    yield from streams.mixers(hp, layer, square=True)


def routed_and_shared(hp: HParams, layer: int) -> Iterator[Expected]:
    """Routed experts, and the shared ones as one."""
    yield from blocks.experts(hp, layer, hp.n_ff_exp[0])
    yield from mixture.shared_expert(hp, layer, hp.n_ff_exp[0] * hp.u32(mixture.SHARED_COUNT.key))


def _compressor(hp: HParams, layer: int, ratio: int) -> Iterator[Expected]:
    head, q_rank = hp.n_embd_head_k(), hp.u32(latent.Q_RANK.key)
    width = 2 * head if ratio == _OVERLAPPING else head
    yield need(roles.ATTN_COMPRESSOR_WKV, layer, hp.n_embd, width)
    yield need(roles.ATTN_COMPRESSOR_WGATE, layer, hp.n_embd, width)
    yield need(roles.ATTN_COMPRESSOR_APE, layer, width, ratio)
    yield need(roles.ATTN_COMPRESSOR_NORM, layer, head)
    if ratio != _OVERLAPPING:
        return
    heads, size = hp.u32("attention.indexer.head_count"), hp.u32("attention.indexer.key_length")
    yield need(roles.INDEXER_PROJ, layer, hp.n_embd, heads)
    yield need(roles.INDEXER_ATTN_Q_B, layer, q_rank, heads * size)
    yield need(roles.INDEXER_COMPRESSOR_WKV, layer, hp.n_embd, 2 * size)
    yield need(roles.INDEXER_COMPRESSOR_WGATE, layer, hp.n_embd, 2 * size)
    yield need(roles.INDEXER_COMPRESSOR_APE, layer, 2 * size, ratio)
    yield need(roles.INDEXER_COMPRESSOR_NORM, layer, size)


def _layer(hp: HParams, layer: int, ratio: int) -> Iterator[Expected]:
    yield from grouped_attention(hp, layer)
    if ratio:
        yield from _compressor(hp, layer, ratio)
    yield from mixture.router(hp, layer)
    if layer < hp.u32(_HASH_LAYERS):
        yield need(roles.FFN_GATE_TID2EID, layer, hp.n_expert_used[0], hp.n_vocab)
    else:
        yield need(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
    yield may(roles.FFN_EXP_PROBS_B_VL.bias, layer, hp.n_expert)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield from routed_and_shared(hp, layer)


def _nextn(hp: HParams, layer: int, ratio: int) -> Iterator[Expected]:
    yield from _layer(hp, layer, ratio)
    yield from blocks.nextn_head(hp, layer)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    yield from streams.head(hp)
    has_trunk, ratios = not blocks.trunk_is_missing(hp, names), hp.array(COMPRESS_RATIOS) or ()
    for layer in range(hp.n_layer):
        yield from blocks.required_if(has_trunk, _layer(hp, layer, ratios[layer]))
    for layer in range(hp.n_layer, hp.n_layer_all):
        yield from blocks.nextn_unused(_nextn(hp, layer, ratios[layer]), present=True)


def _heads_per_group(cut: Cut) -> int:
    return cut.hparams.n_head[cut.layer] // cut.hparams.u32(GROUP_COUNT)


def _sink_steps(cut: Cut) -> tuple[int, ...]:
    return (_heads_per_group(cut),)


def _query_steps(cut: Cut) -> tuple[int, ...]:
    return (_heads_per_group(cut) * cut.hparams.n_embd_head_k(cut.layer),)


def _group_steps(_cut: Cut) -> tuple[int, ...]:
    return (1,)


def _rank_steps(cut: Cut) -> tuple[int, ...]:
    rank = cut.hparams.u32(OUTPUT_RANK)
    if rank % cut.block_size:
        name = roles.ATTN_OUT_B.tensor_name(cut.layer)
        raise PlanError(
            f"{name} cannot be split: a group has {rank} columns, not whole quant blocks of {cut.block_size}",
            code="unsupported_split",
            tensor=name,
            expected=f"a multiple of {cut.block_size}",
            found=rank,
        )
    return (rank,)


_GROUPED = (roles.ATTN_OUT_A,)
_SHARED_DOWN = (roles.FFN_DOWN_SHEXP,)
_WITH_GROUPS = "cut at whole groups of heads: each group has an output projection of its own"
_SHARED_ROWS = "rows are hidden units of the shared expert: cut in lockstep with its down projection"
_SHARED_KEY = PolicyRule(axis="mirrored", why="one key that all heads share: every device needs all of it")

GROUPED_SPLIT = SplitOverrides(
    policy={
        roles.ATTN_SINKS: PolicyRule(axis=0, anchors=_GROUPED, why=_WITH_GROUPS),
        roles.ATTN_Q_B: PolicyRule(axis=1, anchors=_GROUPED, why=_WITH_GROUPS),
        roles.ATTN_OUT_A: PolicyRule(axis=2, why="one matrix per group: each device holds whole groups"),
        roles.ATTN_OUT_B: PolicyRule(axis=0, why="columns are cut by groups, and the sums are added"),
        roles.FFN_UP_SHEXP: PolicyRule(axis=1, anchors=_SHARED_DOWN, why=_SHARED_ROWS),
        roles.FFN_GATE_SHEXP: PolicyRule(axis=1, anchors=_SHARED_DOWN, why=_SHARED_ROWS),
        roles.FFN_DOWN_SHEXP: PolicyRule(
            axis=0, anchors=_SHARED_DOWN, why="columns are cut: each device sums over its own part"
        ),
        CACHE_K: _SHARED_KEY,
        CACHE_V: _SHARED_KEY,
        CACHE_INDEXER_K: _SHARED_KEY,
        roles.OUTPUT: PolicyRule(axis="mirrored", why="every device holds all of it, as of the mixers before it"),
    },
    granularity={
        roles.ATTN_SINKS: _sink_steps,
        roles.ATTN_Q_B: _query_steps,
        roles.ATTN_OUT_A: _group_steps,
        roles.ATTN_OUT_B: _rank_steps,
    },
    why={
        roles.ATTN_SINKS: "the heads of a group",
        roles.ATTN_Q_B: "the rows of a group of heads",
        roles.ATTN_OUT_A: "a group",
        roles.ATTN_OUT_B: "the columns of a group",
    },
)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    ratios = hp.array(COMPRESS_RATIOS) or ()
    size = hp.u32("attention.indexer.key_length")
    return compressed(hp, request, ratio_of=ratios.__getitem__, indexer_head_size=size)


ARCHITECTURE = Architecture(
    name="deepseek4",
    capabilities=Capabilities(hybrid=True),
    hparams=(
        RMS_EPSILON,
        replace(latent.Q_RANK, required=True),
        replace(SLIDING_WINDOW, required=True),
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_COUNT_REQUIRED,
        replace(mixture.WEIGHTS_SCALE, required=True),
        replace(mixture.WEIGHTS_NORM, required=True),
        HParam("swiglu_clamp_exp", Kind.F32, Form.PER_LAYER, required=True),
        HParam("swiglu_clamp_shexp", Kind.F32, Form.PER_LAYER),
        *latent.INDEXER_KEYS,
        HParam(GROUP_COUNT, required=True),
        HParam(OUTPUT_RANK, required=True),
        HParam("attention.compress_rope_freq_base", Kind.F32, required=True),
        HParam(streams.STREAM_COUNT, required=True),
        HParam("hyper_connection.sinkhorn_iterations", required=True),
        HParam("hyper_connection.epsilon", Kind.F32, required=True),
        HParam(_HASH_LAYERS, required=True),
        HParam(COMPRESS_RATIOS, form=Form.ARRAY, required=True),
        mixture.GATING_FUNC_REQUIRED,
    ),
    derive=_derive,
    observe=_observe,
    manifest=_manifest,
    memory=_memory,
    split=GROUPED_SPLIT,
    example={
        **ROUTED,
        **INDEXER,
        "embedding_length": 64,
        "block_count": 3,
        "expert_shared_count": 1,
        "expert_gating_func": 4,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "swiglu_clamp_exp": 10.0,
        "attention.head_count": 8,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 32,
        "attention.sliding_window": 32,
        "attention.output_group_count": 4,
        "attention.output_lora_rank": 32,
        "attention.compress_ratios": [0, 4, 128],
        "attention.compress_rope_freq_base": 160000.0,
        "hyper_connection.count": 2,
        "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 1,
        "rope.dimension_count": 16,
    },
)
