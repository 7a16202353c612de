"""Compressed memory: keys of every token in a window, beside keys that stand for many tokens each.

Two compressors work at a fixed ratio, a layer has one or none; an indexer chooses among the finer one's keys. Each
compressor keeps a state until it has read as many tokens as one key stands for. Keys and values are one tensor.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from app.architectures.attention_memory import attention, every_layer, one_key_head, window_pair
from app.architectures.cache_roles import CACHE_INDEXER_K, cache_role
from app.architectures.hparams import HParams
from app.architectures.memory import CELL_STEP, F32, CacheTensor, MemoryRequest, cache, require_one_type
from app.architectures.roles import Op, Role
from app.units import align_up

FINE_RATIO: Final = 4
COARSE_RATIO: Final = 128

CACHE_FINE_K = cache_role("cache_fine_k", "cache_k_l{}", Op.MUL_MAT)
CACHE_COARSE_K = cache_role("cache_coarse_k", "cache_k_l{}", Op.MUL_MAT)
FINE_STATES: Final = (
    cache_role("fine_state_kv", "dsv4_csa_state_kv_l{}", Op.MUL),
    cache_role("fine_state_score", "dsv4_csa_state_score_l{}", Op.MUL),
)
COARSE_STATES: Final = (
    cache_role("coarse_state_kv", "dsv4_hca_state_kv_l{}", Op.MUL),
    cache_role("coarse_state_score", "dsv4_hca_state_score_l{}", Op.MUL),
)
INDEXER_STATES: Final = (
    cache_role("indexer_state_kv", "dsv4_lid_state_kv_l{}", Op.MUL),
    cache_role("indexer_state_score", "dsv4_lid_state_score_l{}", Op.MUL),
)


def keys_alone(hp: HParams) -> HParams:
    """The same model, whose caches hold only keys."""
    return replace(hp, n_embd_head_k_mla=hp.n_embd_head_k(), n_embd_head_v_mla=hp.n_embd_head_k())


def compressed(
    hp: HParams, request: MemoryRequest, *, ratio_of: Callable[[int], int], indexer_head_size: int
) -> Iterator[CacheTensor]:
    """Every layer's window, then compressed keys, the indexer's keys, and the compressors' states.

    `ratio_of`: how many tokens one key of a layer stands for. Raises PlanError where K and V shall differ in type.
    """
    require_one_type(request)
    own = keys_alone(hp)
    fine = [layer for layer in every_layer(hp) if ratio_of(layer) == FINE_RATIO]
    coarse = [layer for layer in every_layer(hp) if ratio_of(layer) == COARSE_RATIO]
    yield from window_pair(own, request, layers=every_layer(hp))
    fine_cells = _cells(request.cells(hp), FINE_RATIO)
    yield from attention(own, request, layers=fine, cells=fine_cells, keys=CACHE_FINE_K)
    coarse_cells = _cells(request.cells(hp), COARSE_RATIO)
    yield from attention(own, request, layers=coarse, cells=coarse_cells, keys=CACHE_COARSE_K)
    indexed = replace(keys_alone(one_key_head(hp, indexer_head_size)), n_embd_head_k_swa=indexer_head_size)
    yield from attention(indexed, request, layers=fine, cells=fine_cells, keys=CACHE_INDEXER_K)
    head = hp.n_embd_head_k()
    yield from _states(hp, request, fine, FINE_STATES, 2 * head, 2 * FINE_RATIO)
    yield from _states(hp, request, coarse, COARSE_STATES, head, COARSE_RATIO)
    yield from _states(hp, request, fine, INDEXER_STATES, 2 * indexer_head_size, 2 * FINE_RATIO)


def _cells(cells: int, ratio: int) -> int:
    return align_up(max(1, -(-cells // ratio)), CELL_STEP)


def _states(
    hp: HParams, request: MemoryRequest, layers: list[int], parts: tuple[Role, ...], width: int, rows: int
) -> Iterator[CacheTensor]:
    for layer in layers:
        if layer < hp.n_layer:
            for role in parts:
                yield cache(role, layer, F32, width, rows, request.n_seq_max)
