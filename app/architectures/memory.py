"""A model's memory: the context that is asked for, and the cache tensors it comes to.

Which caches a model needs is part of its descriptor (`Architecture.memory`), built from the parts in
`attention_memory`, `recurrent_memory` and `compressed_memory`. Sizes, names, types and their order are the reference's
(`llama_model::create_memory`); what it refuses or dies of is a PlanError here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from app.architectures.hparams import HParams
from app.architectures.roles import Role
from app.errors import Fact, PlanError
from app.ggml import BY_NAME, GgmlType
from app.units import align_up

CELL_STEP: Final = 256  # caches grow in steps that suit the kernels
MAX_SEQUENCES: Final = 256  # LLAMA_MAX_SEQ
F16: Final = BY_NAME["f16"]
F32: Final = BY_NAME["f32"]
# no cache is kept in whole numbers, in f64, or in types that only whole matrices are quantised to
_UNWRITABLE: Final = frozenset(
    ("f64", "i8", "i16", "i32", "i64", "q8_1", "q8_K", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs")
)
CACHE_TYPES: Final = {name: kind for name, kind in BY_NAME.items() if name not in _UNWRITABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """The context a model shall have. `n_ctx` is in tokens over all sequences, 0: as many as the model was trained on.

    Each of `n_seq_max` sequences has a stream of its own. `n_ubatch` is how many tokens are computed at once.
    `type_k` and `type_v` are the types of cached keys and values; recurrent states are always f32. Without
    `flash_attention` all layers' V are as wide as the widest; with `swa_full` a sliding window is cached as a whole.
    """

    n_ctx: int = 0
    n_seq_max: int = 1
    n_ubatch: int = 512
    type_k: GgmlType = F16
    type_v: GgmlType = F16
    flash_attention: bool = True
    swa_full: bool = True

    def cells(self, hp: HParams) -> int:
        """Tokens that one sequence's cache has room for. Raises PlanError where neither side names a length."""
        n_ctx = self.n_ctx or hp.n_ctx_train
        if n_ctx == 0:
            raise refusal("the model was trained on no context length, so the context needs one", field="context.n_ctx")
        return align_up(align_up(n_ctx, CELL_STEP) // self.n_seq_max, CELL_STEP)

    def window_cells(self, hp: HParams) -> int:
        """The same for a layer that only looks back through its sliding window."""
        cells = self.cells(hp)
        return cells if self.swa_full else align_up(min(cells, hp.n_swa + self.n_ubatch), CELL_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTensor:
    """One cache of one layer. `shape` is in GGUF order, without trailing ones; an extent may be 0."""

    role: Role
    layer: int
    type: GgmlType
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The tensor's name; two caches may bear the same."""
        return self.role.tensor_name(self.layer)

    @property
    def nbytes(self) -> int:
        """Exact bytes."""
        nbytes = self.type.row_bytes(self.shape[0])
        for extent in self.shape[1:]:
            nbytes *= extent
        return nbytes


Memory = Callable[[HParams, MemoryRequest], Iterator[CacheTensor]]


def cache(role: Role, layer: int, kind: GgmlType, width: int, *extents: int) -> CacheTensor:
    """A cache of `width` values a row. Raises PlanError where a row is no whole number of the type's blocks."""
    if width % kind.block_size:
        name = role.tensor_name(layer)
        raise refusal(
            f"{name} cannot be {kind.name}: its rows have {width} values, blocks have {kind.block_size}",
            tensor=name,
            expected=kind.block_size,
            found=width,
        )
    shape = [width, *extents]
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return CacheTensor(role=role, layer=layer, type=kind, shape=tuple(shape))


def no_memory(_hp: HParams, _request: MemoryRequest) -> Iterator[CacheTensor]:
    """Nothing is remembered: every pass sees the whole text."""
    return iter(())


def require_types(hp: HParams, request: MemoryRequest) -> None:
    """Refuse types that no cache of this model can have, whatever memory it needs. Raises PlanError."""
    if hp.is_mla:
        require_one_type(request)
    if request.type_v.block_size > 1 and not request.flash_attention:
        raise refusal(
            f"cached values cannot be {request.type_v.name} without flash attention",
            field="context.type_v",
            capability="flash_attention",
        )
    if request.flash_attention:
        _require_whole_blocks(hp, "K", request.type_k, hp.n_embd_head_k)
        _require_whole_blocks(hp, "V", request.type_v, hp.n_embd_head_v)


def require_one_type(request: MemoryRequest) -> None:
    """Refuse different types for keys and values where one tensor holds both. Raises PlanError."""
    if request.type_k is not request.type_v:
        raise refusal(
            f"this model keeps keys and values in one cache, which cannot be {request.type_k.name} and "
            f"{request.type_v.name} at once",
            field="context.type_v",
            expected=request.type_k.name,
            found=request.type_v.name,
        )


def refusal(message: str, **facts: Fact) -> PlanError:
    """The error for a context that this model cannot have."""
    return PlanError(message, code="impossible_plan", **facts)


def _require_whole_blocks(hp: HParams, which: str, kind: GgmlType, head_size: Callable[[int], int]) -> None:
    if kind.block_size == 1:
        return
    for layer in range(hp.n_layer):
        size = head_size(layer)
        if size % kind.block_size:
            raise refusal(
                f"the {which} cache cannot be {kind.name}: heads have {size} values in layer {layer}, "
                f"blocks have {kind.block_size}",
                field=f"context.type_{which.lower()}",
                tensor=f"cache_{which.lower()}_l{layer}",
                layer=layer,
                expected=kind.block_size,
                found=size,
            )
