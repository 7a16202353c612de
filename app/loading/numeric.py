"""The numeric proof: the seams of a layer computed whole and split, with the model's own weights.

Seeded activations go through a layer's attention, feed-forward or experts twice: once over whole tensors, once over
each device's slices as the plan cuts them. The partial sums must agree with the whole. What acts on single heads or
mirrored tensors (rotary positions, norms of the residual) is the same on both sides and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.architectures import roles
from app.architectures.roles import Role
from app.architectures.understanding import Understanding
from app.ggml import dequantise
from app.modelfile.source import ByteSource
from app.planner.plan import PlannedTensor, SplitPlan

Array = NDArray[np.float32]

TOKENS: Final = 6
TOLERANCE: Final = 1e-4  # of the largest value; float32 sums in another order differ by less
_EPSILON: Final = np.float32(1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericProof:
    """One seam of one layer. `error` is the largest difference, relative to the largest value of the whole."""

    seam: str
    layer: int
    holds: bool
    error: float
    detail: str

    def as_json(self) -> dict[str, Any]:
        """The proof as the command line shows it."""
        return {
            "seam": self.seam,
            "layer": self.layer,
            "holds": self.holds,
            "error": self.error if np.isfinite(self.error) else str(self.error),
            "tolerance": TOLERANCE,
            "detail": self.detail,
        }


class _SeamError(Exception):
    """The slices of one device do not go together: there is nothing to compute."""


def layers_to_prove(understanding: Understanding) -> tuple[int, ...]:
    """The first layer of each kind (window, recurrence, experts), and the last: what is cut alike is proved once."""
    hp = understanding.hparams
    names = understanding.model.by_name
    seen: dict[tuple[bool, ...], int] = {}
    for layer in range(hp.n_layer):
        expert = roles.FFN_DOWN_EXPS.tensor_name(layer) in names
        seen.setdefault((hp.is_swa[layer], hp.is_recr[layer], expert), layer)
    return tuple(sorted({*seen.values(), hp.n_layer - 1}))


def numeric_proofs(
    plan: SplitPlan, understanding: Understanding, sources: Sequence[ByteSource], layers: Sequence[int], seed: int = 0
) -> Iterator[NumericProof]:
    """Every seam of `layers` that is cut over the plan's devices, computed whole and split.

    Attention of linear-attention layers is not computed (its audit proofs stand alone). Raises FileError.
    """
    for layer in layers:
        weights = _Weights(plan, sources, layer)
        rng = np.random.Generator(np.random.PCG64(seed * 1_000_003 + layer))
        x = rng.standard_normal((TOKENS, understanding.hparams.n_embd), np.float32)
        if weights.is_cut(roles.ATTN_OUT) and not understanding.hparams.is_recr[layer]:
            yield _prove("attention", layer, _Attention(weights, understanding, layer), x)
        if weights.is_cut(roles.FFN_DOWN):
            yield _prove("feed_forward", layer, _FeedForward(weights), x)
        if weights.is_cut(roles.FFN_DOWN_EXPS):
            chosen = rng.permutation(understanding.hparams.n_expert)[: max(understanding.hparams.n_expert_used)]
            yield _prove("experts", layer, _Experts(weights, tuple(int(expert) for expert in sorted(chosen))), x)


def _prove(seam: str, layer: int, block: _Attention | _FeedForward | _Experts, x: Array) -> NumericProof:
    try:
        whole = block.compute(x, None)
        parts = [block.compute(x, device) for device in range(block.weights.n_devices)]
    except _SeamError as fault:
        return NumericProof(seam=seam, layer=layer, holds=False, error=float("inf"), detail=str(fault))
    joined = np.sum(parts, axis=0, dtype=np.float32)
    scale = float(np.max(np.abs(whole))) or 1.0
    error = float(np.max(np.abs(whole - joined))) / scale
    shares = "/".join(f"{float(np.max(np.abs(part))):.3g}" for part in parts)
    return NumericProof(
        seam=seam,
        layer=layer,
        holds=bool(np.isfinite(error) and error <= TOLERANCE),
        error=error,
        detail=f"largest value {scale:.3g}, partial sums up to {shares}, largest difference {error * scale:.3g}",
    )


class _Weights:
    """One layer's tensors as float32, whole or a device's slice of them."""

    def __init__(self, plan: SplitPlan, sources: Sequence[ByteSource], layer: int) -> None:
        self._sources = sources
        self._tensors = {
            tensor.role: tensor for tensor in plan.tensors if tensor.layer == layer and tensor.device is None
        }
        self.n_devices = len(plan.devices)

    def find(self, role: Role) -> PlannedTensor | None:
        """The planned tensor of a role, if the layer has one that belongs to all devices."""
        return self._tensors.get(role.label)

    def is_cut(self, role: Role) -> bool:
        """Whether the layer has the role and it is cut."""
        tensor = self.find(role)
        return tensor is not None and isinstance(tensor.axis, int)

    def get(self, role: Role, device: int | None, expert: int | None = None) -> Array | None:
        """A weight as `[rows, columns]`, a bias as `[1, columns]`: whole (`device` None) or a device's slice.

        `expert` picks one matrix of an expert tensor, or one row of its bias.
        """
        tensor = self.find(role)
        if tensor is None:
            return None
        raw = self._read(tensor, expert)
        if device is not None and isinstance(tensor.axis, int):
            raw = _slice(tensor, raw, device)
        return dequantise(tensor.type, np.ascontiguousarray(raw))

    def require(self, role: Role, device: int | None, expert: int | None = None) -> Array:
        """As `get`, for a role the seam cannot do without."""
        found = self.get(role, device, expert)
        if found is None:
            raise _SeamError(f"the layer has no {role} on all devices")
        return found

    def _read(self, tensor: PlannedTensor, expert: int | None) -> NDArray[np.uint8]:
        assert tensor.source is not None
        shape = (*tensor.shape, 1, 1)
        row_bytes = tensor.type.row_bytes(shape[0])
        rows = shape[1] * (1 if expert is not None and shape[2] > 1 else shape[2])
        first = 0
        if expert is not None:
            first = expert * shape[1] if shape[2] > 1 else expert
            rows = shape[1] if shape[2] > 1 else 1
        data = bytearray(rows * row_bytes)
        self._sources[tensor.source.shard].read_into(tensor.source.offset + first * row_bytes, memoryview(data))
        return np.frombuffer(data, np.uint8).reshape(rows, row_bytes)


def _slice(tensor: PlannedTensor, raw: NDArray[np.uint8], device: int) -> NDArray[np.uint8]:
    """A device's runs of the axis, in order, out of `[rows, row_bytes]`."""
    pieces = []
    at = 0
    for part in tensor.segments:
        for _ in range(part.repeats):
            start = at + sum(part.extents[:device])
            pieces.append((start, start + part.extents[device]))
            at += sum(part.extents)
    if tensor.axis == 1:
        return np.concatenate([raw[start:end] for start, end in pieces])
    block, size = tensor.type.block_size, tensor.type.type_size
    if any(bound % block for piece in pieces for bound in piece):
        raise _SeamError(f"{tensor.name} is cut inside a {tensor.type.name} block")
    return np.concatenate([raw[:, start // block * size : end // block * size] for start, end in pieces], axis=1)


def _project(x: Array, weight: Array, bias: Array | None) -> Array:
    if weight.shape[1] != x.shape[1]:
        raise _SeamError(f"{x.shape[1]} values meet a projection of {weight.shape[1]} columns")
    y = x @ weight.T
    return y if bias is None else y + bias.reshape(1, -1)


class _Attention:
    """Q, K and V, causal attention per head, output projection."""

    def __init__(self, weights: _Weights, understanding: Understanding, layer: int) -> None:
        hp = understanding.hparams
        self.weights = weights
        self._head_k, self._head_v = hp.n_embd_head_k(layer), hp.n_embd_head_v(layer)
        self._group = hp.n_gqa(layer)
        self._gate = understanding.architecture.capabilities.q_parts
        self._n_q = self._gate * hp.n_head[layer] * self._head_k
        self._n_k = hp.n_embd_k_gqa(layer)

    def compute(self, x: Array, device: int | None) -> Array:
        """The attention's contribution to the residual: all of it, or a device's partial sum."""
        q, k, v = self._projections(x, device)
        query = self._heads(q, self._gate * self._head_k, "Q")
        key, value = self._heads(k, self._head_k, "K"), self._heads(v, self._head_v, "V")
        if not len(key) == len(value) or len(query) != len(key) * self._group:
            raise _SeamError(
                f"{len(query)} query heads meet {len(key)} key and {len(value)} value heads; "
                f"each key head serves {self._group}"
            )
        out = self.weights.require(roles.ATTN_OUT, device)
        if not len(query):
            return self._nothing(out, x)
        if self._gate == 2:
            query, gate = query[:, :, : self._head_k], query[:, :, self._head_k :]
        query = self._normed(query, roles.ATTN_Q_NORM, device)
        key = self._normed(key, roles.ATTN_K_NORM, device)
        mixed = self._attend(query, key, value, device)
        if self._gate == 2:
            mixed = mixed * _sigmoid(gate)
        flat = mixed.transpose(1, 0, 2).reshape(len(x), -1)
        return _project(self._gated(x, flat, len(query), device), out, None)

    def _nothing(self, out: Array, x: Array) -> Array:
        if out.shape[1]:
            raise _SeamError(f"no heads meet {out.shape[1]} columns of the output projection")
        return np.zeros((len(x), len(out)), np.float32)

    def _projections(self, x: Array, device: int | None) -> tuple[Array, Array, Array]:
        fused = self.weights.get(roles.ATTN_QKV, device)
        if fused is None:
            return (
                _project(x, self.weights.require(roles.ATTN_Q, device), self.weights.get(roles.ATTN_Q.bias, device)),
                _project(x, self.weights.require(roles.ATTN_K, device), self.weights.get(roles.ATTN_K.bias, device)),
                _project(x, self.weights.require(roles.ATTN_V, device), self.weights.get(roles.ATTN_V.bias, device)),
            )
        joined = _project(x, fused, self.weights.get(roles.ATTN_QKV.bias, device))
        n_q, n_k = self._n_q, self._n_k
        if device is not None:
            n_q, n_k = self._fused_widths(device)
        return joined[:, :n_q], joined[:, n_q : n_q + n_k], joined[:, n_q + n_k :]

    def _fused_widths(self, device: int) -> tuple[int, int]:
        """How much of Q and of K a device's fused slice holds: its share of the runs that lie in each."""
        tensor = self.weights.find(roles.ATTN_QKV)
        assert tensor is not None
        at, widths = 0, [0, 0, 0]
        for part in tensor.segments:
            for _ in range(part.repeats):
                widths[0 if at < self._n_q else 1 if at < self._n_q + self._n_k else 2] += part.extents[device]
                at += sum(part.extents)
        return widths[0], widths[1]

    def _heads(self, values: Array, size: int, what: str) -> Array:
        if values.shape[1] % size:
            raise _SeamError(f"{values.shape[1]} values of {what} are no whole heads of {size}")
        return values.reshape(len(values), -1, size).transpose(1, 0, 2)

    def _normed(self, heads: Array, role: Role, device: int | None) -> Array:
        weight = self.weights.get(role, device)
        if weight is None:
            return heads
        if weight.shape[0] not in (1, len(heads)):
            raise _SeamError(f"{len(heads)} heads meet {weight.shape[0]} norms ({role})")
        scale = np.sqrt(np.mean(heads * heads, axis=-1, keepdims=True) + _EPSILON)
        normed: Array = (heads / scale * weight[:, None, :]).astype(np.float32)
        return normed

    def _attend(self, query: Array, key: Array, value: Array, device: int | None) -> Array:
        key, value = np.repeat(key, self._group, axis=0), np.repeat(value, self._group, axis=0)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(self._head_k))
        scores += np.triu(np.full(scores.shape[1:], -np.inf, np.float32), 1)
        sinks = self.weights.get(roles.ATTN_SINKS, device)
        if sinks is not None:
            if sinks.size != len(query):
                raise _SeamError(f"{len(query)} heads meet {sinks.size} sinks")
            scores = np.concatenate([scores, np.broadcast_to(sinks.reshape(-1, 1, 1), (*scores.shape[:2], 1))], axis=2)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed: Array = weights[:, :, : value.shape[1]] @ value
        return mixed

    def _gated(self, x: Array, flat: Array, n_heads: int, device: int | None) -> Array:
        """A gate of its own over the heads' outputs, per value or per head, where the model has one."""
        weight = self.weights.get(roles.ATTN_GATE, device)
        if weight is None:
            return flat
        gate: Array = _sigmoid(_project(x, weight, None))
        if gate.shape[1] == n_heads:
            gate = np.repeat(gate, self._head_v, axis=1)
        if gate.shape != flat.shape:
            raise _SeamError(f"a gate of {gate.shape[1]} values meets {flat.shape[1]} of the heads")
        gated: Array = flat * gate
        return gated


class _FeedForward:
    """Gate and up (apart or fused), activation, down."""

    def __init__(self, weights: _Weights) -> None:
        self.weights = weights

    def compute(self, x: Array, device: int | None) -> Array:
        """The feed-forward's contribution to the residual: all of it, or a device's partial sum."""
        weights = self.weights
        up = _project(x, weights.require(roles.FFN_UP, device), weights.get(roles.FFN_UP.bias, device))
        gate = weights.get(roles.FFN_GATE, device)
        down = weights.require(roles.FFN_DOWN, device)
        if gate is not None:
            hidden = _meet(_project(x, gate, weights.get(roles.FFN_GATE.bias, device)), up)
        elif up.shape[1] == 2 * down.shape[1]:
            hidden = _meet(up[:, : down.shape[1]], up[:, down.shape[1] :])
        else:
            hidden = _silu(up)
        return _project(hidden, down, None)


class _Experts:
    """Some routed experts, each with a weight of its own, summed."""

    def __init__(self, weights: _Weights, chosen: tuple[int, ...]) -> None:
        self.weights = weights
        self._chosen = chosen

    def compute(self, x: Array, device: int | None) -> Array:
        """The experts' contribution to the residual: all of it, or a device's partial sum."""
        total = np.zeros_like(x)
        for place, expert in enumerate(self._chosen):
            total = total + np.float32(1 / (place + 2)) * self._one(x, device, expert)
        return total

    def _one(self, x: Array, device: int | None, expert: int) -> Array:
        weights = self.weights
        down = weights.require(roles.FFN_DOWN_EXPS, device, expert)
        both = weights.get(roles.FFN_GATE_UP_EXPS, device, expert)
        if both is not None:
            joined = _project(x, both, None)
            hidden = _meet(joined[:, : joined.shape[1] // 2], joined[:, joined.shape[1] // 2 :])
        else:
            up = self._biased(x, roles.FFN_UP_EXPS, device, expert)
            single = weights.get(roles.FFN_GATE_EXPS, device, expert)
            hidden = _silu(up) if single is None else _meet(self._biased(x, roles.FFN_GATE_EXPS, device, expert), up)
        return _project(hidden, down, None) + self._share_of_bias(device, expert)

    def _biased(self, x: Array, role: Role, device: int | None, expert: int) -> Array:
        return _project(x, self.weights.require(role, device, expert), self.weights.get(role.bias, device, expert))

    def _share_of_bias(self, device: int | None, expert: int) -> Array | np.float32:
        """A partial tensor counts once: the devices that hold a part of the sum add an equal share of it."""
        tensor = self.weights.find(roles.FFN_DOWN_EXPS.bias)
        bias = self.weights.get(roles.FFN_DOWN_EXPS.bias, None, expert)
        if tensor is None or bias is None:
            return np.float32(0)
        if device is None:
            return bias
        (shares,) = (part.extents for part in tensor.segments)
        contributors = sum(share > 0 for share in shares)
        return bias / np.float32(contributors) if shares[device] else np.float32(0)


def _meet(gate: Array, up: Array) -> Array:
    if gate.shape != up.shape:
        raise _SeamError(f"{gate.shape[1]} hidden units of the gate meet {up.shape[1]} of up")
    return _silu(gate) * up


def _silu(values: Array) -> Array:
    return values * _sigmoid(values)


def _sigmoid(values: Array) -> Array:
    return (1 / (1 + np.exp(-np.clip(values, -80, 80)))).astype(np.float32)
