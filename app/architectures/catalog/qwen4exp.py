"""Qwen4 experimental: hyper-connections around every block, an indexer beside full attention, hashed n-gram tables."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, mixture, recurrent, roles
from app.architectures.attention_memory import index_keys
from app.architectures.blocks import need
from app.architectures.catalog.qwen3next import gated_attention, routed_and_shared
from app.architectures.catalog.qwen35 import ROPE_SECTIONS
from app.architectures.common import RMS_EPSILON, bad_value, require
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import DENSE, EXPERTS, INDEXER, STATE_SPACE
from app.architectures.hparams import Form, HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.recurrent_memory import attending_in_trunk, hybrid
from app.architectures.roles import Role

_MAX_NGRAM = 8  # LLAMA_MAX_PLE_NGRAM
_MAX_TABLE_HEADS = 64  # LLAMA_MAX_PLE_HEADS
_MAX_ROW = 2**31 - 1  # rows are gathered by 32-bit signed indices

_STREAMS = "hyper_connection.count"
_LOW_RANK = "hyper_connection.low_rank"
_TABLE_LAYERS = "ple.layers"
_TABLE_WIDTH = "embedding_length_per_layer_input"
_OFFSETS, _SIZES, _MULTIPLIERS = "ple.head_offsets", "ple.head_vocab_sizes", "ple.layer_multipliers"


def _derive(hp: HParams) -> HParams:
    hp = recurrent.with_ssm(mixture.with_expert_widths(hp))
    mixture.expert_width(hp)
    hp = replace(hp, n_embd_out_impl=hp.u32(_STREAMS) * hp.n_embd)
    table_layer = _check_table(hp)
    hp = recurrent.recurrent_by_interval(hp)
    if table_layer is not None and not hp.is_recr[table_layer]:
        raise bad_value(hp.arch, _TABLE_LAYERS, table_layer, "a recurrent layer: only those keep its history")
    return hp


def _table_layer(hp: HParams) -> int | None:
    """The one layer that reads the n-gram tables, if any."""
    layers = hp.array(_TABLE_LAYERS)
    return layers[0] if layers else None


def _check_table(hp: HParams) -> int | None:
    layers = hp.array(_TABLE_LAYERS) or ()
    if hp.given(_TABLE_LAYERS) and hp.array(_TABLE_LAYERS) is None:
        raise bad_value(hp.arch, _TABLE_LAYERS, hp.u32(_TABLE_LAYERS), "an array with one layer")
    if not layers:
        return None
    if len(layers) != 1:
        raise bad_value(hp.arch, _TABLE_LAYERS, len(layers), "one layer")
    if layers[0] >= hp.n_layer_all:
        raise bad_value(hp.arch, _TABLE_LAYERS, layers[0], f"less than {hp.n_layer_all}, the block count")
    require(hp, "ple.ngram_size", "ple.heads_per_ngram", "ple.conv_kernel", "ple.eos_token_id", _TABLE_WIDTH)
    for key in ("ple.conv_kernel", _TABLE_WIDTH):
        if hp.u32(key) == 0:
            raise bad_value(hp.arch, key, 0, "at least 1")
    ngram = hp.u32("ple.ngram_size")
    if not 2 <= ngram <= _MAX_NGRAM:
        raise bad_value(hp.arch, "ple.ngram_size", ngram, f"2 to {_MAX_NGRAM}")
    heads = _table_heads(hp)
    if not 1 <= heads <= _MAX_TABLE_HEADS:
        raise bad_value(hp.arch, "ple.heads_per_ngram", hp.u32("ple.heads_per_ngram"), f"1 to {_MAX_TABLE_HEADS} heads")
    require(hp, _MULTIPLIERS, _OFFSETS, _SIZES)
    for key, low, high in (
        (_MULTIPLIERS, ngram, _MAX_NGRAM),
        (_OFFSETS, heads, _MAX_TABLE_HEADS),
        (_SIZES, heads, _MAX_TABLE_HEADS),
    ):
        count = len(hp.array(key) or ())
        if not low <= count <= high:
            raise bad_value(hp.arch, key, count, f"{low} to {high} elements")
    for offset, size in _ranges(hp):
        if size == 0 or offset + size > _MAX_ROW:
            raise bad_value(hp.arch, _SIZES, size, f"at least 1 row and an end of at most {_MAX_ROW}")
    return layers[0]


def _table_heads(hp: HParams) -> int:
    return (hp.u32("ple.ngram_size") - 1) * hp.u32("ple.heads_per_ngram")


def _ranges(hp: HParams) -> list[tuple[int, int]]:
    pairs = zip(hp.array(_OFFSETS) or (), hp.array(_SIZES) or (), strict=False)
    return list(pairs)[: _table_heads(hp)]


def _table(hp: HParams, names: Names) -> Iterator[Expected]:
    """The n-gram table: at least the rows its heads reach; files may pad it."""
    rows = max(offset + size for offset, size in _ranges(hp))
    found = names.get(roles.PER_LAYER_TOKEN_EMBD.tensor_name())
    if found is not None and len(found.shape) > 1:
        rows = max(rows, found.shape[1])
    yield need(roles.PER_LAYER_TOKEN_EMBD, None, hp.u32(_TABLE_WIDTH), rows)


def _grouped_norm(hp: HParams, role: Role, layer: int | None) -> Expected:
    return Expected(role=role, layer=layer, shape=(hp.n_embd, hp.u32(_STREAMS)), reshaped=True)


def _mixer(hp: HParams, layer: int, norm: Role, down: Role, up: Role, inject: Role) -> Iterator[Expected]:
    width, rank = hp.u32(_STREAMS) * hp.n_embd, hp.u32(_LOW_RANK)
    yield _grouped_norm(hp, norm, layer)
    yield need(down, layer, width, rank)
    yield need(up, layer, rank, width)
    yield need(inject, layer, width, hp.u32(_STREAMS))


def _indexer(hp: HParams, layer: int) -> Iterator[Expected]:
    heads, width = hp.u32("attention.indexer.head_count"), hp.u32("attention.indexer.key_length")
    yield need(roles.INDEXER_Q_PROJ, layer, hp.n_embd, heads * width)
    yield need(roles.INDEXER_K_PROJ, layer, hp.n_embd, width)
    yield need(roles.INDEXER_Q_NORM, layer, width)
    yield need(roles.INDEXER_K_NORM, layer, width)


def _table_reader(hp: HParams, layer: int) -> Iterator[Expected]:
    width = hp.u32(_STREAMS) * hp.n_embd
    yield need(roles.PLE_KEY, layer, hp.n_embd, width)
    yield need(roles.PLE_VALUE, layer, hp.n_embd, hp.n_embd)
    for role in (roles.PLE_NORM_KEY, roles.PLE_NORM_QUERY, roles.PLE_NORM_CONV):
        yield _grouped_norm(hp, role, layer)
    yield need(roles.PLE_CONV1D, layer, hp.u32("ple.conv_kernel"), width)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    width, rank = hp.u32(_STREAMS) * hp.n_embd, hp.u32(_LOW_RANK)
    yield from blocks.embedding(hp)
    yield _grouped_norm(hp, roles.HC_HEAD_NORM, None)
    yield need(roles.HC_HEAD_DOWN, None, width, rank)
    yield need(roles.HC_HEAD_UP, None, rank, width)
    yield from blocks.output(hp, names, norm=False)
    table_layer = _table_layer(hp)
    if table_layer is not None:
        yield from _table(hp, names)
    for layer in range(hp.n_layer):
        yield from _mixer(hp, layer, roles.HC_ATTN_NORM, roles.HC_ATTN_DOWN, roles.HC_ATTN_UP, roles.HC_ATTN_INJECT)
        yield from _mixer(hp, layer, roles.HC_FFN_NORM, roles.HC_FFN_DOWN, roles.HC_FFN_UP, roles.HC_FFN_INJECT)
        if hp.is_recr[layer]:
            yield from recurrent.delta_rule(hp, layer, projections=True)
        else:
            yield from gated_attention(hp, names, layer)
            yield from _indexer(hp, layer)
        if layer == table_layer:
            yield from _table_reader(hp, layer)
        yield from routed_and_shared(hp, names, layer, hp.u32(mixture.SHARED_FF.key) or hp.n_ff[0])


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """Beside keys, values and states: the past of the n-gram tables' convolution, and the indexer's keys."""
    attending, table_layer = attending_in_trunk(hp), _table_layer(hp)
    past = (hp.u32("ple.conv_kernel") - 1) * hp.u32("ple.ngram_size") * hp.u32(_STREAMS) * hp.n_embd
    histories = {table_layer: past} if table_layer is not None else {}
    yield from hybrid(hp, request, attending=attending, histories=histories)
    yield from index_keys(hp, request, width=hp.u32("attention.indexer.key_length"), layers=attending)


ARCHITECTURE = Architecture(
    name="qwen4exp",
    capabilities=Capabilities(tensor_split=False, hybrid=True, q_gate=True, linear_attention=True, v_follows_k=True),
    hparams=(
        mixture.EXPERT_FF,
        mixture.SHARED_FF,
        RMS_EPSILON,
        ROPE_SECTIONS,
        *(replace(key, minimum=1) for key in recurrent.GROUPED_SSM_KEYS),
        HParam(_STREAMS, required=True, minimum=2),
        HParam(_LOW_RANK, required=True, minimum=1),
        HParam("attention.indexer.head_count", required=True, minimum=1),
        HParam("attention.indexer.key_length", required=True, minimum=1),
        HParam("attention.indexer.top_k", required=True, minimum=1),
        HParam("attention.compress_ratios", form=Form.PER_LAYER),
        HParam(_TABLE_LAYERS, form=Form.EITHER),
        HParam("ple.ngram_size"),
        HParam("ple.heads_per_ngram"),
        HParam("ple.conv_kernel"),
        HParam("ple.eos_token_id"),
        HParam("ple.image_token_id"),
        HParam(_TABLE_WIDTH),
        HParam(_MULTIPLIERS, Kind.U64, Form.ARRAY),
        HParam(_OFFSETS, Kind.U64, Form.ARRAY),
        HParam(_SIZES, Kind.U64, Form.ARRAY),
        recurrent.RECURRENT_LAYERS,
        recurrent.FULL_ATTENTION_INTERVAL,
    ),
    derive=_derive,
    manifest=_manifest,
    memory=_memory,
    rope=RopeType.IMROPE,
    size_name=by_layers({48: "A3B"}),
    example={
        **DENSE,
        **EXPERTS,
        **INDEXER,
        **STATE_SPACE,
        "embedding_length": 64,
        "rope.dimension_sections": [4, 4, 4, 0],
        "ssm.state_size": 32,
        "ssm.group_count": 2,
        "hyper_connection.count": 2,
        "hyper_connection.low_rank": 16,
        "full_attention_interval": 2,
    },
)
