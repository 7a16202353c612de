"""The proofs of lockstep: in every layer, what meets at a seam was cut at the same places.

Each goes through a plan layer by layer: every part of what is fused, attention, linear attention, feed-forward.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice

from app.architectures import roles
from app.architectures.roles import Role
from app.planner.plan import PlannedTensor, extent_along
from app.planner.seams import (
    Fault,
    Layer,
    Meeting,
    Numbers,
    PlannedLayers,
    SeamProof,
    compare,
    cut_tensors,
    is_cut,
    per,
)

LayerCheck = Callable[[PlannedLayers, int, Layer], Iterator[Fault | Numbers]]


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


def _layer_by_layer(check: LayerCheck) -> Callable[[PlannedLayers], Iterator[Fault | Numbers]]:
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


def _all_meet(seam: str, unit: str, anchor: Meeting, others: Sequence[Meeting]) -> Iterator[Fault | Numbers]:
    """Nothing that meets in a projection is cut unless that is, and then at the same places."""
    if is_cut(anchor.tensor):
        yield compare(seam, unit, anchor, others)
    elif others:
        name = anchor.tensor.name
        yield Fault(seam, f"{others[0].tensor.name} is cut and {name} is not", name)


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
        Meeting(tensor, part, per(layers.shares(tensor), per_head, times))
        for part, wanted, per_head, times in parts
        for tensor in cut_tensors(layer, *wanted)
    ]
    for tensor in cut_tensors(layer, roles.ATTN_QKV, roles.ATTN_QKV.bias):
        meetings += _fused_heads(tensor, parts_of_q * head_k, head_k, head_v, group)
    for label, per_head in (("cache_k", head_k), ("cache_v", head_v)):
        cache = layer.get(label)
        if cache is not None and is_cut(cache):
            meetings.append(Meeting(cache, label, per(layers.shares(cache), per_head, group)))
    yield from _all_meet(seam, "head", Meeting(out, "output", per(layers.shares(out), head_v)), meetings)


def _fused_heads(tensor: PlannedTensor, q: int, k: int, v: int, group: int) -> list[Meeting]:
    runs = [*islice(_runs(tensor), 4)]
    if len(runs) != 3:
        return []
    return [
        Meeting(tensor, "fused Q", per(runs[0], q)),
        Meeting(tensor, "fused K", per(runs[1], k, group)),
        Meeting(tensor, "fused V", per(runs[2], v, group)),
    ]


def _state(layers: PlannedLayers, number: int, layer: Layer) -> Iterator[Fault | Numbers]:
    hp = layers.hparams
    head, (_, _, ratio) = hp.ssm_d_state, hp.linear_widths
    out = layer.get(roles.SSM_OUT.label)
    if out is None or not layers.capabilities.is_linear(hp, number) or not head or not ratio:
        return
    seam = f"linear attention of layer {number}"
    meetings = []
    for tensor in cut_tensors(layer, roles.ATTN_QKV, roles.SSM_CONV1D):
        meetings += _fused_states(layers, tensor, head, ratio)
    for tensor in cut_tensors(layer, roles.ATTN_GATE):
        meetings.append(Meeting(tensor, "gate", per(layers.shares(tensor), head)))
    per_head = (roles.SSM_DT.bias, roles.SSM_A, roles.SSM_A_NOSCAN, roles.SSM_ALPHA, roles.SSM_BETA)
    for tensor in cut_tensors(layer, *per_head):
        meetings.append(Meeting(tensor, tensor.role, per(layers.shares(tensor), 1)))
    for tensor in cut_tensors(layer, roles.SSM_BETA_ALPHA):
        meetings.append(Meeting(tensor, tensor.role, per(layers.shares(tensor), 2)))
    states = layer.get("cache_s")
    if states is not None and is_cut(states):
        meetings.append(Meeting(states, "state", per(layers.shares(states), head * head)))
    history = layer.get("cache_r")
    if history is not None and is_cut(history) and hp.ssm_d_conv > 1:
        meetings += _fused_states(layers, history, head * (hp.ssm_d_conv - 1), ratio)
    yield from _all_meet(seam, "state head", Meeting(out, "output", per(layers.shares(out), head)), meetings)


def _fused_states(layers: PlannedLayers, tensor: PlannedTensor, head: int, ratio: int) -> list[Meeting]:
    """Q, K and V of linear attention: `ratio` value heads go with each key head, V is all that follows Q and K."""
    runs = [*islice(_runs(tensor), 3)]
    if len(runs) < 3:
        return []
    shares = zip(layers.shares(tensor), runs[0], runs[1], strict=True)
    values = tuple(whole - queries - keys for whole, queries, keys in shares)
    return [
        Meeting(tensor, "fused Q", per(runs[0], head, ratio)),
        Meeting(tensor, "fused K", per(runs[1], head, ratio)),
        Meeting(tensor, "fused V", per(values, head)),
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
                meetings += [Meeting(tensor, role.label, per(run, 1)) for run in _runs(tensor)]
        yield from _all_meet(seam, "hidden unit", Meeting(down, "down", per(layers.shares(down), 1)), meetings)


def _runs(tensor: PlannedTensor) -> Iterator[tuple[int, ...]]:
    """The shares of each run of a fused tensor; of one that is not, its only run's. A file may ask for very many."""
    return (part.extents for part in tensor.segments for _ in range(part.repeats))


def _fused_parts(layers: PlannedLayers, number: int, layer: Layer) -> Iterator[Fault | Numbers]:
    """A boundary between parts is a boundary between runs, so that every device has its share of each part."""
    for tensor, widths in _fused_widths(layers, number, layer):
        missing = [boundary for boundary in accumulate(widths) if not _a_run_ends_at(tensor, boundary)]
        if missing:
            yield Fault(
                tensor.name,
                f"parts of {_list(widths)} elements: there is a seam at {missing[0]}, and no run ends there",
                tensor.name,
            )
        else:
            yield Numbers(partial("{}: parts of {} elements, each cut on its own".format, tensor.name, _list(widths)))


def _a_run_ends_at(tensor: PlannedTensor, boundary: int) -> bool:
    start = 0
    for part in tensor.segments:
        run = sum(part.extents)
        end = start + run * part.repeats
        if boundary < end:
            return (boundary - start) % run == 0
        start = end
    return boundary == start


def _fused_widths(layers: PlannedLayers, number: int, layer: Layer) -> Iterator[tuple[PlannedTensor, tuple[int, ...]]]:
    hp = layers.hparams
    if layers.capabilities.is_linear(hp, number):
        keys, values, _ = hp.linear_widths
        for tensor in cut_tensors(layer, roles.ATTN_QKV, roles.SSM_CONV1D):
            yield tensor, (keys, keys, values)
    else:
        n_q = layers.capabilities.q_parts * hp.n_head[number] * hp.n_embd_head_k(number)
        for tensor in cut_tensors(layer, roles.ATTN_QKV, roles.ATTN_QKV.bias):
            yield tensor, (n_q, hp.n_embd_k_gqa(number), hp.n_embd_v_gqa(number))
    for tensor in cut_tensors(layer, roles.FFN_UP, roles.FFN_UP.bias):
        assert isinstance(tensor.axis, int)
        if hp.is_fused_up(number, extent_along(tensor.shape, tensor.axis)):
            yield tensor, (hp.n_ff[number], hp.n_ff[number])
    for tensor in cut_tensors(layer, roles.FFN_GATE_UP_EXPS):
        yield tensor, (hp.n_ff_exp[number], hp.n_ff_exp[number])


def _list(numbers: Sequence[int]) -> str:
    return "/".join(map(str, numbers))
