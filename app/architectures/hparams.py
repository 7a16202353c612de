"""Hyperparameters: which keys a model of an architecture has, and what follows from them.

A catalog file declares its keys as `HParam`s; `common.COMMON` are the keys every architecture shares. `reading` takes
their values from a file's metadata, `common` makes one frozen `HParams` of them. Names, defaults and bounds are the
reference's (`llama_hparams`, `llama_model_base::load_hparams`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from app.modelfile.types import ValueType

MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS
MAX_EXPERTS: Final = 1024  # LLAMA_MAX_EXPERTS

Value = int | float | bool | str | tuple[int | float | bool, ...]


class Kind(Enum):
    """The type a key must have; the reference refuses any other."""

    U32 = ValueType.U32
    I32 = ValueType.I32
    U64 = ValueType.U64
    F32 = ValueType.F32
    BOOL = ValueType.BOOL
    STRING = ValueType.STRING


class Form(Enum):
    """What may stand under a key.

    `SCALAR`: one value. `PER_LAYER`: one value for all layers, or an array with one per block. `ARRAY`: an array of at
    most 512; with anything else under the key, an optional one counts as absent, as in the reference.
    `SECTIONS`: one value for, or an array of exactly, four rotary sections. `LABELS`: an array of strings, of which
    only the length counts. `EITHER`: a scalar or an array of any length up to 512. `LIST`: as `ARRAY`, up to 4096.
    """

    SCALAR = "scalar"
    PER_LAYER = "per layer"
    ARRAY = "array"
    SECTIONS = "sections"
    LABELS = "labels"
    EITHER = "either"
    LIST = "list"


class SwaType(IntEnum):
    """The shape of a sliding window (`llama_swa_type`)."""

    NONE = 0
    STANDARD = 1
    CHUNKED = 2
    SYMMETRIC = 3


class RopeType(IntEnum):
    """How rotary positions pair the values of a head (`llama_rope_type`)."""

    NONE = -1
    NORM = 0
    NEOX = 2
    MROPE = 8
    VISION = 24
    IMROPE = 40


@dataclass(frozen=True, slots=True)
class HParam:
    """One key of the metadata, without the `<architecture>.` in front.

    `default` is None where the absence itself means something; `minimum` and `maximum` bound each value. `bare`: the
    key has no architecture in front.
    """

    key: str
    kind: Kind = Kind.U32
    form: Form = Form.SCALAR
    required: bool = False
    default: int | float | bool | str | None = None
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] | None = None
    bare: bool = False

    def name(self, arch: str) -> str:
        """The key as it stands in a file of architecture `arch`."""
        return self.key if self.bare else f"{arch}.{self.key}"


@dataclass(frozen=True, kw_only=True)
class HParams:
    """Everything a model's shape follows from. Per-layer tuples have `n_layer_all` entries, NextN layers included.

    `values` holds every declared key by its name without the prefix (None where absent and without a default);
    the fields hold what the reference derives, under its names. Lengths are in elements.
    """

    arch: str
    values: Mapping[str, Value | None] = field(repr=False)
    n_vocab: int
    n_token_types: int = 0
    n_ctx_train: int
    n_embd: int
    n_layer_all: int
    n_layer_nextn: int
    n_expert: int
    n_expert_used: tuple[int, ...]
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    n_ff_exp: tuple[int, ...]
    n_embd_head_k_full: int
    n_embd_head_v_full: int
    n_embd_head_k_swa: int
    n_embd_head_v_swa: int
    n_rot_full: int
    n_rot_swa: int
    is_swa: tuple[bool, ...]
    is_recr: tuple[bool, ...]
    swa_type: SwaType = SwaType.NONE
    n_swa: int = 0
    n_layer_kv_from_start: int = -1
    causal_attn: bool = True
    use_alibi: bool = False
    rope_scaling_type: str = "linear"
    n_cls_out: int = 1
    n_embd_inp_impl: int = 0
    n_embd_out_impl: int = 0
    n_deepstack_layers: int = 0
    n_embd_head_k_mla: int = 0
    n_embd_head_v_mla: int = 0
    ssm_d_conv: int = 0
    ssm_d_inner: int = 0
    ssm_d_state: int = 0
    ssm_dt_rank: int = 0
    ssm_n_group: int = 0
    wkv_head_size: int = 0
    token_shift_count: int = 2
    n_shortconv_l_cache: int = 0
    n_embd_head_kda: int = 0
    n_embd_head_la: int = 0

    def u32(self, key: str) -> int:
        """The value of a declared whole-number key; 0 where it is absent and has no default."""
        value = self.values[key]
        assert value is None or isinstance(value, int)
        return value or 0

    def given(self, key: str) -> bool:
        """Whether the file has the declared key (in a form that counts)."""
        return self.values[key] is not None

    def array(self, key: str) -> tuple[int, ...] | None:
        """The whole numbers of a declared array key, or None where it is absent or a scalar."""
        value = self.values[key]
        return tuple(int(element) for element in value) if isinstance(value, tuple) else None

    def number(self, key: str) -> float:
        """The value of a declared floating-point key; 0.0 where it is absent and has no default."""
        value = self.values[key]
        assert not isinstance(value, str | tuple)
        return float(value or 0.0)

    @property
    def n_layer(self) -> int:
        """Layers of the trunk: without NextN layers."""
        return self.n_layer_all - self.n_layer_nextn

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent attention: keys and values expand from one compressed vector."""
        return self.n_embd_head_k_mla != 0 and self.n_embd_head_v_mla != 0

    def n_embd_head_k(self, layer: int = 0) -> int:
        """Head size of K (and Q) in `layer`."""
        return self.n_embd_head_k_swa if self.is_swa[layer] else self.n_embd_head_k_full

    def n_embd_head_v(self, layer: int = 0) -> int:
        """Head size of V in `layer`."""
        return self.n_embd_head_v_swa if self.is_swa[layer] else self.n_embd_head_v_full

    def n_rot(self, layer: int = 0) -> int:
        """Rotary dimensions in `layer`."""
        return self.n_rot_swa if self.is_swa[layer] else self.n_rot_full

    def n_gqa(self, layer: int = 0) -> int:
        """Query heads per key head in `layer`; 0 where there are no key heads."""
        kv = self.n_head_kv[layer]
        return self.n_head[layer] // kv if kv else 0

    def n_embd_k_gqa(self, layer: int = 0) -> int:
        """Width of K over all its heads in `layer`."""
        return self.n_embd_head_k(layer) * self.n_head_kv[layer]

    def n_embd_v_gqa(self, layer: int = 0) -> int:
        """Width of V over all its heads in `layer`."""
        return self.n_embd_head_v(layer) * self.n_head_kv[layer]

    def has_kv(self, layer: int) -> bool:
        """Whether `layer` has keys and values of its own."""
        return self.n_layer_kv_from_start < 0 or layer < self.n_layer_kv_from_start

    def is_fused_up(self, layer: int, extent: int) -> bool:
        """Whether an up projection with `extent` rows holds gate and up one after the other."""
        return extent == 2 * self.n_ff[layer] != 0

    @property
    def linear_widths(self) -> tuple[int, int, int]:
        """Of linear attention: the width of all keys (as of all queries), of all values, and value heads per key head.

        The last is 0 where there are no key heads.
        """
        keys, values = self.ssm_d_state * self.ssm_n_group, self.ssm_d_state * self.ssm_dt_rank
        return keys, values, self.ssm_dt_rank // self.ssm_n_group if self.ssm_n_group else 0

    @property
    def n_embd_inp(self) -> int:
        """Width of an input embedding."""
        return self.n_embd_inp_impl or self.n_embd * (1 + self.n_deepstack_layers)

    @property
    def n_embd_out(self) -> int:
        """Width of an output embedding."""
        return self.n_embd_out_impl or self.n_embd

    @property
    def n_embd_r(self) -> int:
        """Elements of one sequence's convolution (or token-shift) state in a recurrent layer."""
        if self.wkv_head_size:
            return self.token_shift_count * self.n_embd
        if self.n_shortconv_l_cache:
            return self.n_embd * (self.n_shortconv_l_cache - 1)
        if self.n_embd_head_kda:
            return 3 * (self.ssm_d_conv - 1 if self.ssm_d_conv else 3) * self.n_head[0] * self.n_embd_head_kda
        return max(self.ssm_d_conv - 1, 0) * (self.ssm_d_inner + 2 * self.ssm_n_group * self.ssm_d_state)

    @property
    def n_embd_s(self) -> int:
        """Elements of one sequence's recurrent state in a recurrent layer."""
        if self.wkv_head_size:
            return self.n_embd * self.wkv_head_size
        for head in (self.n_embd_head_kda, self.n_embd_head_la):
            if head:
                return head * head * self.n_head[0]
        return self.ssm_d_state * self.ssm_d_inner


def layers_where(n_layer: int, n_layer_all: int, period: int, *, dense_first: bool = False) -> tuple[bool, ...]:
    """The periodic pattern of sliding-window (or recurrent) layers: every `period`-th of the trunk is dense.

    `period` 0: all are set; 1: none. With `dense_first` the first of each period is the dense one, else the last.
    NextN layers are never set (`llama_hparams::set_swa_pattern`).
    """
    if dense_first:
        trunk = [period == 0 or layer % period != 0 for layer in range(n_layer)]
    else:
        trunk = [period == 0 or layer % period < period - 1 for layer in range(n_layer)]
    return tuple(trunk) + (False,) * (n_layer_all - n_layer)
