"""Memory of recurrent layers, whose size no context changes, and of models that have attention beside them."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from app.architectures.attention_memory import attention, every_layer, window_pair
from app.architectures.cache_roles import CACHE_PLE_R, CACHE_R, CACHE_S
from app.architectures.hparams import HParams, SwaType
from app.architectures.memory import F32, CacheTensor, MemoryRequest, cache

_NOTHING: Mapping[int, int] = MappingProxyType({})


def recurrent(
    hp: HParams,
    request: MemoryRequest,
    *,
    layers: Iterable[int] | None = None,
    histories: Mapping[int, int] = _NOTHING,
) -> Iterator[CacheTensor]:
    """The last inputs and the state of each of `layers` (None: the trunk's), a row per sequence.

    `histories`: how many values of a per-layer embedding's past a layer keeps besides.
    """
    rows = request.n_seq_max
    for layer in range(hp.n_layer) if layers is None else layers:
        yield cache(CACHE_R, layer, F32, hp.n_embd_r, rows)
        yield cache(CACHE_S, layer, F32, hp.n_embd_s, rows)
        if layer in histories:
            yield cache(CACHE_PLE_R, layer, F32, histories[layer], rows)


def hybrid(
    hp: HParams,
    request: MemoryRequest,
    *,
    attending: Iterable[int] | None = None,
    recurring: Iterable[int] | None = None,
    histories: Mapping[int, int] = _NOTHING,
) -> Iterator[CacheTensor]:
    """Caches of the layers that attend, then the states of the recurrent ones; a layer may be both.

    None: layers without a recurrent state attend, NextN layers among them; of the trunk's, those with one recur.
    """
    if attending is None:
        attending = [layer for layer in every_layer(hp) if not hp.is_recr[layer]]
    if recurring is None:
        recurring = recurring_in_trunk(hp)
    pair = hp.swa_type is not SwaType.NONE
    yield from (window_pair if pair else attention)(hp, request, layers=attending)
    yield from recurrent(hp, request, layers=recurring, histories=histories)


def attending_in_trunk(hp: HParams) -> list[int]:
    """Layers of the trunk without a recurrent state."""
    return [layer for layer in range(hp.n_layer) if not hp.is_recr[layer]]


def recurring_in_trunk(hp: HParams) -> list[int]:
    """Layers of the trunk with a recurrent state."""
    return [layer for layer in range(hp.n_layer) if hp.is_recr[layer]]


def trunk_hybrid(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """A hybrid whose NextN layers remember nothing."""
    return hybrid(hp, request, attending=attending_in_trunk(hp))
