"""Caches of attention: keys and values of every token, whole or through a window, shared, latent, indexed."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from app.architectures.cache_roles import CACHE_IDX_K, CACHE_INDEXER_K, CACHE_INDEXER_V, CACHE_K, CACHE_V
from app.architectures.hparams import HParams, SwaType
from app.architectures.memory import CacheTensor, MemoryRequest, cache, refusal
from app.architectures.roles import Role


def trunk(hp: HParams) -> Iterable[int]:
    """The layers that a model's own passes go through: without NextN layers, unless it consists of nothing else."""
    return range(hp.n_layer or hp.n_layer_all)


def every_layer(hp: HParams) -> Iterable[int]:
    """All layers, NextN layers included."""
    return range(hp.n_layer_all)


def attention(
    hp: HParams,
    request: MemoryRequest,
    *,
    layers: Iterable[int] | None = None,
    cells: int | None = None,
    keys: Role = CACHE_K,
    values: Role = CACHE_V,
) -> Iterator[CacheTensor]:
    """Keys and values of `layers` (None: the trunk's), as far as they have their own.

    Latent attention expands its values from the keys and caches only those. `cells`: tokens per sequence, if not all.
    """
    cells = request.cells(hp) if cells is None else cells
    widest = 0 if request.flash_attention else max(hp.n_embd_v_gqa(layer) for layer in range(hp.n_layer_all))
    for layer in trunk(hp) if layers is None else layers:
        if not hp.has_kv(layer):
            continue
        yield cache(keys, layer, request.type_k, hp.n_embd_k_gqa(layer), cells, request.n_seq_max)
        if not hp.is_mla:
            width = widest or hp.n_embd_v_gqa(layer)
            yield cache(values, layer, request.type_v, width, cells, request.n_seq_max)


def window_pair(hp: HParams, request: MemoryRequest, *, layers: Iterable[int] | None = None) -> Iterator[CacheTensor]:
    """Two caches: of the layers that see everything, then of those that look through a sliding window."""
    chosen = tuple(trunk(hp) if layers is None else layers)
    yield from attention(hp, request, layers=[layer for layer in chosen if not hp.is_swa[layer]])
    windowed = [layer for layer in chosen if hp.is_swa[layer]]
    yield from attention(hp, request, layers=windowed, cells=request.window_cells(hp))


def standard_attention(
    hp: HParams, request: MemoryRequest, *, layers: Iterable[int] | None = None
) -> Iterator[CacheTensor]:
    """One cache, or two where the model has a sliding window. Raises PlanError where its layers contradict that."""
    windowed = hp.swa_type is not SwaType.NONE
    if windowed is not any(hp.is_swa):
        raise refusal(
            "the model has a sliding window and no layer that looks through it"
            if windowed
            else "the model has layers with a sliding window and no window"
        )
    return (window_pair if windowed else attention)(hp, request, layers=layers)


def shared_by_later_layers(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """Later layers without keys of their own use those of the last layer of their kind that has some.

    Raises PlanError where there is no such layer.
    """
    last = hp.n_layer_kv_from_start
    if last < 2:
        raise refusal("fewer than two layers have keys of their own: there are none of each kind to share")
    for layer in trunk(hp):
        if hp.has_kv(layer):
            continue
        source = last - (2 if hp.is_swa[layer] else 1)
        if hp.is_swa[source] is not hp.is_swa[layer]:
            raise refusal(
                f"layer {layer} has no keys of its own, and layer {source} has none of its kind to share", layer=layer
            )
    return standard_attention(hp, request)


def one_key_head(hp: HParams, size: int) -> HParams:
    """The same model with a single key head of `size` in each full-attention layer: how an indexer sees it."""
    return replace(hp, n_head_kv=(1,) * hp.n_layer_all, n_embd_head_k_full=size)


def indexer(hp: HParams, request: MemoryRequest, *, head_size: int, layers: Iterable[int]) -> Iterator[CacheTensor]:
    """What an indexer remembers of each token to choose by: one key head; values too, where attention caches some."""
    seen = one_key_head(hp, head_size)
    return attention(seen, request, layers=layers, keys=CACHE_INDEXER_K, values=CACHE_INDEXER_V)


def index_keys(hp: HParams, request: MemoryRequest, *, width: int, layers: Iterable[int]) -> Iterator[CacheTensor]:
    """The keys alone of an indexer beside recurrent layers, under a name of their own."""
    for layer in layers:
        yield cache(CACHE_IDX_K, layer, request.type_k, width, request.cells(hp), request.n_seq_max)
