"""Laguna: heads that vary by layer, attention gated per head or per element, experts behind a dense lead."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, optional_window

_SHARED_COUNT = replace(mixture.SHARED_COUNT, default=1)


def _derive(hp: HParams) -> HParams:
    return mixture.with_expert_widths(optional_window(hp, period=4, dense_first=True))


def _gate_width(hp: HParams, names: Names, layer: int, n_q: int) -> int:
    """As the file has it, if that is one value per element of Q; else one per head."""
    gate = names.get(roles.ATTN_GATE.tensor_name(layer))
    per_element = gate is not None and len(gate.shape) > 1 and gate.shape[1] == n_q
    return n_q if per_element else hp.n_head[layer]


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0]
    n_ff_shexp = hp.u32(mixture.SHARED_FF.key) or n_ff_exp * hp.u32(_SHARED_COUNT.key)
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        n_q, n_kv = hp.n_embd_head_k() * hp.n_head[layer], hp.n_head_kv[layer]
        n_k, n_v = hp.n_embd_head_k() * n_kv, hp.n_embd_head_v() * n_kv
        yield from blocks.attention(hp, names, layer, n_q, n_k, n_v)
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
        yield need(roles.ATTN_GATE, layer, hp.n_embd, _gate_width(hp, names, layer, n_q))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        if mixture.is_dense(hp, layer):
            yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[0])
        else:
            yield from mixture.router(hp, layer, biased=True)
            yield from blocks.experts(hp, layer, n_ff_exp)
            yield from mixture.shared_expert(hp, layer, n_ff_shexp)


ARCHITECTURE = Architecture(
    name="laguna",
    hparams=(
        RMS_EPSILON,
        replace(mixture.LEADING_DENSE, required=True),
        mixture.EXPERT_FF_REQUIRED,
        mixture.GATING_FUNC,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        _SHARED_COUNT,
        mixture.SHARED_FF,
        SLIDING_WINDOW,
        SWA_PATTERN,
        FREQ_BASE_SWA,
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({40: "30B.A3B", 48: "118B.A8B", 70: "230B.A10B"}),
    example={
        **ROUTED,
        **EXPERTS_AFTER_DENSE,
        "block_count": 3,
        "attention.head_count": [4, 8, 4],
        "attention.sliding_window": 32,
    },
)
