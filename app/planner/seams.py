"""The seams of a layer: where slices of different tensors meet, and what must be equal there.

Everything is measured in the unit of the seam (query heads, hidden units, state heads), per device. As slices lie in
device order, equal shares are equal ranges.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial

from app.architectures import roles
from app.architectures.roles import Role
from app.architectures.understanding import Understanding
from app.modelfile.types import TensorInfo
from app.planner.plan import PlannedTensor, SplitPlan, extent_along

Shares = tuple[int, ...]
Units = tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """A seam at which a proof fails."""

    seam: str
    detail: str
    tensor: str | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """A seam at which a proof holds; `show` gives its numbers (most are never looked at, so it is only then made)."""

    show: Callable[[], str]


@dataclass(frozen=True, slots=True)
class SeamProof:
    """A proof: its name, the seam it is about, and the check that goes through a plan."""

    name: str
    seam: str
    check: "Callable[[PlannedLayers], Iterator[Fault | Numbers]]"


class PlannedLayers:
    """A plan's tensors by layer and role, with the model they belong to."""

    def __init__(self, plan: SplitPlan, understanding: Understanding) -> None:
        self.plan = plan
        self.understanding = understanding
        self.hparams = understanding.hparams
        self.capabilities = understanding.architecture.capabilities
        self.n_devices = len(plan.devices)
        self.all = (*plan.tensors, *plan.caches)
        self._by_layer: dict[int, dict[str, PlannedTensor]] = {}
        for tensor in self.all:
            if tensor.layer is not None and tensor.device is None:
                self._by_layer.setdefault(tensor.layer, {})[tensor.role] = tensor
        self._shares: dict[tuple[object, ...], Shares] = {}

    @cached_property
    def unused(self) -> frozenset[TensorInfo]:
        """Tensors of the file that nothing uses."""
        return frozenset(self.understanding.comparison.unused)

    def layers(self) -> Iterator[tuple[int, Mapping[str, PlannedTensor]]]:
        """The layers that belong to all devices, each with its tensors by role."""
        yield from self._by_layer.items()

    def alike(self, number: int) -> object:
        """Equal for layers whose tensors were cut by the same decisions: they need no second look.

        Decisions are told apart by identity, so a tensor that was cut on its own is always looked at.
        """
        hp = self.hparams
        facts = (hp.n_head[number], hp.n_head_kv[number], hp.n_ff[number], hp.is_swa[number], hp.is_recr[number])
        cuts = ((role, tensor.axis, id(tensor.segments)) for role, tensor in self._by_layer[number].items())
        return facts, tuple(cuts)

    def shares(self, tensor: PlannedTensor) -> Shares:
        """Elements along the axis per device, over all runs."""
        known = self._shares.get(tensor.segments)
        if known is None:
            known = self._shares[tensor.segments] = tuple(
                sum(part.extents[d] * part.repeats for part in tensor.segments) for d in range(self.n_devices)
            )
        return known


def seam_proofs() -> list[SeamProof]:
    """The proofs about seams, in the order a layer is computed."""
    return [
        SeamProof("fused_parts", "every part of a fused tensor", _layer_by_layer(_fused_parts)),
        SeamProof("attention_lockstep", "Q, K, V, their caches and the output projection", _layer_by_layer(_attention)),
        SeamProof(
            "state_lockstep", "linear attention: inputs, states and the output projection", _layer_by_layer(_state)
        ),
        SeamProof("feed_forward_lockstep", "gate and up with down", _layer_by_layer(_feed_forward)),
    ]


Layer = Mapping[str, PlannedTensor]
LayerCheck = Callable[["PlannedLayers", int, Layer], "Iterator[Fault | Numbers]"]


def _layer_by_layer(check: LayerCheck) -> "Callable[[PlannedLayers], Iterator[Fault | Numbers]]":
    """Go through all layers; those alike to one that was found right are right."""

    def check_all(layers: PlannedLayers) -> Iterator[Fault | Numbers]:
        right: dict[object, list[Numbers]] = {}
        for number, layer in layers.layers():
            kind = layers.alike(number)
            known = right.get(kind)
            if known is not None:
                yield from known
                continue
            outcomes = list(check(layers, number, layer))
            found = [outcome for outcome in outcomes if isinstance(outcome, Numbers)]
            if len(found) == len(outcomes):
                right[kind] = found
            yield from outcomes

    return check_all


@dataclass(frozen=True, slots=True)
class _Meeting:
    """One tensor at a seam: its shares in the seam's unit."""

    tensor: PlannedTensor
    part: str
    units: Units


def _compare(seam: str, unit: str, anchor: _Meeting, others: Sequence[_Meeting]) -> Fault | Numbers:
    """All shares must be whole numbers of the unit, and equal to the anchor's."""
    for meeting in (anchor, *others):
        if not _whole(meeting.units):
            return Fault(
                seam,
                f"{meeting.part} {meeting.tensor.name} is cut inside a {unit}: {_text(meeting.units)} {unit}s",
                meeting.tensor.name,
            )
    for meeting in others:
        if meeting.units != anchor.units:
            return Fault(
                seam,
                f"{meeting.part} {meeting.tensor.name} has {_text(meeting.units)} {unit}s, "
                f"{anchor.tensor.name} {_text(anchor.units)}",
                meeting.tensor.name,
            )

    def show() -> str:
        names = ", ".join(dict.fromkeys(meeting.part for meeting in (anchor, *others)))
        return f"{seam}: {names} all have {_text(anchor.units)} {unit}s"

    return Numbers(show)


@lru_cache(maxsize=4096)
def _per(shares: Shares, per_unit: int, times: int = 1) -> Units:
    if per_unit == 0:
        return tuple(Fraction(-1) for _ in shares)
    return tuple(Fraction(share * times, per_unit) for share in shares)


@lru_cache(maxsize=4096)
def _whole(units: Units) -> bool:
    return all(share.denominator == 1 for share in units)


def _text(units: Sequence[Fraction]) -> str:
    return "/".join(str(unit) for unit in units)


def _is_cut(tensor: PlannedTensor | None) -> bool:
    return tensor is not None and isinstance(tensor.axis, int)


def _cut(layer: Mapping[str, PlannedTensor], *wanted: Role) -> Iterator[PlannedTensor]:
    for role in wanted:
        tensor = layer.get(role.label)
        if tensor is not None and _is_cut(tensor):
            yield tensor


def _attention(layers: PlannedLayers, number: int, layer: Layer) -> Iterator[Fault | Numbers]:
    hp, parts_of_q = layers.hparams, layers.capabilities.q_parts
    out = layer.get(roles.ATTN_OUT.label)
    if out is None or hp.is_recr[number]:
        return
    seam = f"attention of layer {number}"
    head_k, head_v, group = hp.n_embd_head_k(number), hp.n_embd_head_v(number), hp.n_gqa(number)
    # what meets the output projection: (part, its roles, elements per head, query heads per head of its own)
    gated = layer.get(roles.ATTN_GATE.label)
    gate_width = extent_along(gated.shape, 1) // max(hp.n_head[number], 1) if gated is not None else 0
    parts = (
        ("Q", (roles.ATTN_Q, roles.ATTN_Q.bias), parts_of_q * head_k, 1),
        ("K", (roles.ATTN_K, roles.ATTN_K.bias), head_k, group),
        ("V", (roles.ATTN_V, roles.ATTN_V.bias), head_v, group),
        ("sinks", (roles.ATTN_SINKS,), 1, 1),
        ("gate", (roles.ATTN_GATE,), gate_width, 1),
        ("norm of Q", (roles.ATTN_Q_NORM,), 1, 1),
        ("norm of K", (roles.ATTN_K_NORM,), 1, group),
    )
    meetings = [
        _Meeting(tensor, part, _per(layers.shares(tensor), per_head, times))
        for part, wanted, per_head, times in parts
        for tensor in _cut(layer, *wanted)
    ]
    for tensor in _cut(layer, roles.ATTN_QKV, roles.ATTN_QKV.bias):
        meetings += _fused_heads(tensor, parts_of_q * head_k, head_k, head_v, group)
    for label, per_head in (("cache_k", head_k), ("cache_v", head_v)):
        cache = layer.get(label)
        if cache is not None and _is_cut(cache):
            meetings.append(_Meeting(cache, label, _per(layers.shares(cache), per_head, group)))
    if not meetings and not _is_cut(out):
        return
    if not _is_cut(out):
        yield Fault(seam, f"{meetings[0].tensor.name} is cut and {out.name} is not", out.name)
        return
    yield _compare(seam, "head", _Meeting(out, "output", _per(layers.shares(out), head_v)), meetings)


def _fused_heads(tensor: PlannedTensor, q: int, k: int, v: int, group: int) -> list[_Meeting]:
    parts = [part.extents for part in tensor.segments for _ in range(part.repeats)]
    if len(parts) != 3:
        return []
    return [
        _Meeting(tensor, "fused Q", _per(parts[0], q)),
        _Meeting(tensor, "fused K", _per(parts[1], k, group)),
        _Meeting(tensor, "fused V", _per(parts[2], v, group)),
    ]


def _state(layers: PlannedLayers, number: int, layer: Layer) -> Iterator[Fault | Numbers]:
    hp = layers.hparams
    head, (_, _, ratio) = hp.ssm_d_state, hp.linear_widths
    out = layer.get(roles.SSM_OUT.label)
    if out is None or not layers.capabilities.is_linear(hp, number) or not head or not ratio:
        return
    seam = f"linear attention of layer {number}"
    meetings = []
    for tensor in _cut(layer, roles.ATTN_QKV, roles.SSM_CONV1D):
        meetings += _fused_states(tensor, head, ratio)
    for tensor in _cut(layer, roles.ATTN_GATE):
        meetings.append(_Meeting(tensor, "gate", _per(layers.shares(tensor), head)))
    per_head = (roles.SSM_DT.bias, roles.SSM_A, roles.SSM_A_NOSCAN, roles.SSM_ALPHA, roles.SSM_BETA)
    for tensor in _cut(layer, *per_head):
        meetings.append(_Meeting(tensor, tensor.role, _per(layers.shares(tensor), 1)))
    for tensor in _cut(layer, roles.SSM_BETA_ALPHA):
        meetings.append(_Meeting(tensor, tensor.role, _per(layers.shares(tensor), 2)))
    states = layer.get("cache_s")
    if states is not None and _is_cut(states):
        meetings.append(_Meeting(states, "state", _per(layers.shares(states), head * head)))
    history = layer.get("cache_r")
    if history is not None and _is_cut(history) and hp.ssm_d_conv > 1:
        meetings += _fused_states(history, head * (hp.ssm_d_conv - 1), ratio)
    if not meetings and not _is_cut(out):
        return
    if not _is_cut(out):
        yield Fault(seam, f"{meetings[0].tensor.name} is cut and {out.name} is not", out.name)
        return
    yield _compare(seam, "state head", _Meeting(out, "output", _per(layers.shares(out), head)), meetings)


def _fused_states(tensor: PlannedTensor, head: int, ratio: int) -> list[_Meeting]:
    """Q, K and V of linear attention: `ratio` value heads go with each key head."""
    runs = [part.extents for part in tensor.segments for _ in range(part.repeats)]
    if len(runs) < 3:
        return []
    values = runs[2] if len(runs) == 3 and ratio == 1 else tuple(sum(run) for run in zip(*runs[2:], strict=True))
    return [
        _Meeting(tensor, "fused Q", _per(runs[0], head, ratio)),
        _Meeting(tensor, "fused K", _per(runs[1], head, ratio)),
        _Meeting(tensor, "fused V", _per(values, head)),
    ]


_UPS: tuple[tuple[Role, tuple[Role, ...]], ...] = (
    (roles.FFN_DOWN, (roles.FFN_UP, roles.FFN_UP.bias, roles.FFN_GATE, roles.FFN_GATE.bias)),
    (
        roles.FFN_DOWN_EXPS,
        (
            roles.FFN_UP_EXPS,
            roles.FFN_UP_EXPS.bias,
            roles.FFN_GATE_EXPS,
            roles.FFN_GATE_EXPS.bias,
            roles.FFN_GATE_UP_EXPS,
            roles.FFN_DOWN_EXPS.bias,
        ),
    ),
    (roles.FFN_DOWN_SHEXP, (roles.FFN_UP_SHEXP, roles.FFN_GATE_SHEXP)),
)


def _feed_forward(layers: PlannedLayers, number: int, layer: Layer) -> Iterator[Fault | Numbers]:
    for down_role, up_roles in _UPS:
        down = layer.get(down_role.label)
        if down is None:
            continue
        seam = f"{down_role.label} of layer {number}"
        meetings = []
        for role in up_roles:
            tensor = layer.get(role.label)
            if tensor is not None and tensor.axis != "mirrored":
                meetings += [_Meeting(tensor, role.label, _per(run, 1)) for run in _runs(tensor)]
        if not meetings and not _is_cut(down):
            continue
        if not _is_cut(down):
            yield Fault(seam, f"{meetings[0].tensor.name} is cut and {down.name} is not", down.name)
            continue
        yield _compare(seam, "hidden unit", _Meeting(down, "down", _per(layers.shares(down), 1)), meetings)


def _runs(tensor: PlannedTensor) -> list[tuple[int, ...]]:
    """The shares of each run of a fused tensor (gate and up); of one that is not, its only run's."""
    return [part.extents for part in tensor.segments for _ in range(part.repeats)]


def _fused_parts(layers: PlannedLayers, number: int, layer: Layer) -> Iterator[Fault | Numbers]:
    """A boundary between parts is a boundary between runs, so that every device has its share of each part."""
    for tensor, widths in _fused_widths(layers, number, layer):
        ends, end = set(), 0
        for part in tensor.segments:
            for _ in range(part.repeats):
                end += sum(part.extents)
                ends.add(end)
        seams, at = [], 0
        for width in widths:
            at += width
            seams.append(at)
        missing = [boundary for boundary in seams if boundary not in ends]
        if missing:
            yield Fault(
                tensor.name,
                f"parts of {_list(widths)} elements: there is a seam at {missing[0]}, and no run ends there",
                tensor.name,
            )
        else:
            yield Numbers(partial("{}: parts of {} elements, each cut on its own".format, tensor.name, _list(widths)))


def _fused_widths(
    layers: PlannedLayers, number: int, layer: Mapping[str, PlannedTensor]
) -> Iterator[tuple[PlannedTensor, tuple[int, ...]]]:
    hp = layers.hparams
    if layers.capabilities.is_linear(hp, number):
        keys, values, _ = hp.linear_widths
        for tensor in _cut(layer, roles.ATTN_QKV, roles.SSM_CONV1D):
            yield tensor, (keys, keys, values)
    else:
        n_q = layers.capabilities.q_parts * hp.n_head[number] * hp.n_embd_head_k(number)
        for tensor in _cut(layer, roles.ATTN_QKV, roles.ATTN_QKV.bias):
            yield tensor, (n_q, hp.n_embd_k_gqa(number), hp.n_embd_v_gqa(number))
    for tensor in _cut(layer, roles.FFN_UP, roles.FFN_UP.bias):
        assert isinstance(tensor.axis, int)
        if hp.is_fused_up(number, extent_along(tensor.shape, tensor.axis)):
            yield tensor, (hp.n_ff[number], hp.n_ff[number])
    for tensor in _cut(layer, roles.FFN_GATE_UP_EXPS):
        yield tensor, (hp.n_ff_exp[number], hp.n_ff_exp[number])


def _list(numbers: Sequence[int]) -> str:
    return "/".join(map(str, numbers))
