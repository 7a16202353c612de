"""The memory of an architecture whose own file says nothing about it: what its capabilities come to."""

from collections.abc import Iterator

from app.architectures.attention_memory import standard_attention
from app.architectures.hparams import HParams
from app.architectures.memory import CacheTensor, Memory, MemoryRequest, no_memory
from app.architectures.recurrent_memory import hybrid, recurrent


def standard_memory(*, is_recurrent: bool, is_hybrid: bool, is_diffusion: bool) -> Memory:
    """Recurrent states, those beside attention, attention alone; nothing where whole texts are denoised at once."""
    if is_recurrent:
        return _all_recurrent
    if is_hybrid:
        return _hybrid
    return no_memory if is_diffusion else _attention


def _all_recurrent(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    return recurrent(hp, request)


def _hybrid(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    return hybrid(hp, request)


def _attention(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    return standard_attention(hp, request)
