"""Every value that crosses a planning stage, and the finished plan. Frozen; no I/O, no names of architectures.

Values of which a plan makes thousands are named tuples, the others frozen data classes: a tuple costs a third.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.roles import LayerClass, Op, Role
from app.ggml import GgmlType
from app.modelfile.types import TensorInfo

HOST = "host"
MAX_DEVICES = 16  # GGML_BACKEND_META_MAX_DEVICES: more cannot share one tensor

SplitAxis = Literal[0, 1, 2]
Axis = Literal[0, 1, 2, "mirrored", "partial"]
Tensor = TensorInfo | CacheTensor  # of the file, or of the model's memory: the stages treat them alike


def extent_along(shape: Sequence[int], axis: int) -> int:
    """The length of `shape` along `axis`: one beyond its last dimension, as trailing ones are left out."""
    return shape[axis] if axis < len(shape) else 1


class SplitMode(StrEnum):
    """How a model is spread over devices."""

    NONE = "none"
    LAYER = "layer"
    ROW = "row"
    TENSOR = "tensor"


class Allocator(StrEnum):
    """How boundaries are chosen."""

    REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDevice:
    """What the planner must know of a device. Sizes in bytes; `free_bytes` is at the time of asking."""

    name: str
    kind: str
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Tensors whose name `pattern` (RE2, unanchored) matches live on `device`, a device's name or `host`."""

    pattern: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTargets:
    """The request as the planner sees it, defaults applied and names checked.

    `devices` in request order, the host among them only if it was listed; `host` is always known. `tensor_split` has
    one weight per device (float32 values) or is None. `main_device` is an index into `devices`. `n_gpu_layers` below
    zero means all. `context` None: no caches.
    """

    mode: SplitMode
    devices: tuple[PlanDevice, ...]
    host: PlanDevice
    tensor_split: tuple[float, ...] | None = None
    main_device: int = 0
    n_gpu_layers: int = -1
    overrides: tuple[Override, ...] = ()
    allocator: Allocator = Allocator.REFERENCE
    context: MemoryRequest | None = None


class Classified(NamedTuple):
    """A tensor with its meaning. `layer` is None for model-level tensors; `copy` marks a further placement of one."""

    tensor: Tensor
    role: Role
    layer: int | None
    copy: bool = False

    @property
    def layer_class(self) -> LayerClass:
        """Input, repeating or output."""
        return self.role.layer_class


class Policy(NamedTuple):
    """Stage 2's answer: along which axis, whose quant block limits the cut, by how much the layer is rotated."""

    axis: Axis
    anchor: Tensor
    rotation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Segment:
    """Stage 3's answer: `repeats` consecutive runs of `extent` elements along the axis, each cut the same way."""

    extent: int
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """One sentence per decision."""

    policy: str
    segmentation: str = ""
    granularity: str = ""
    allocation: str = ""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment with its shares: `extents[d]` elements per run for device `d`, `repeats` runs."""

    extents: tuple[int, ...]
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """What must be summed after a tensor was used: each device that holds a part of it has a partial result.

    `partials` devices hold a part, each with a result of `result_bytes` (float32) for a token. `bytes_per_token` is
    what moves until every device has the sum: the other partial results in, the sum out to the other devices.
    """

    partials: int
    result_bytes: int
    bytes_per_token: int


class PlannedTensor(NamedTuple):
    """One tensor (or one copy of it), placed. Its JSON is `render.tensor_json` of this.

    `axis` 0, 1, 2, `mirrored` or `partial`: it belongs to all devices and `device` is None. `axis` None: it lives
    whole on `device`. Slices lie on their device in device order within each run of each segment, whatever the
    rotation: the rotation only decides who gets the remainder. A `partial` tensor is whole on every device; its
    extents are the shares of the tensor whose partial sums it is added to. `op` consumes the tensor; `reduce_after`
    says what it leaves to be summed.
    `bytes_per_device` follows the plan's devices (not the host, unless it is listed). `source` is None for caches.
    """

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    nbytes: int
    role: str
    op: Op
    layer: int | None
    device: str | None
    axis: Axis | None
    segments: tuple[PlannedSegment, ...]
    granularity: tuple[int, ...]
    rotation: int
    bytes_per_device: tuple[int, ...]
    why: Why
    source: TensorInfo | None
    reduce_after: Reduction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTotal:
    """What the plan puts on one device, in bytes. `total_bytes` is weights and caches."""

    name: str
    weights_bytes: int
    cache_bytes: int
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        """Weights and caches."""
        return self.weights_bytes + self.cache_bytes

    @property
    def shortfall_bytes(self) -> int:
        """How much is missing; 0 if it fits."""
        return max(0, self.total_bytes - self.free_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """A finished plan. `devices` is in request order; `totals` has one entry per device, and the host if it is used."""

    mode: SplitMode
    devices: tuple[PlanDevice, ...]
    tensors: tuple[PlannedTensor, ...]
    caches: tuple[PlannedTensor, ...]
    totals: tuple[DeviceTotal, ...]
    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every device has room for its share."""
        return all(total.shortfall_bytes == 0 for total in self.totals)
