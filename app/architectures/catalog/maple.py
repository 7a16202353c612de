"""Maple: layers listed with and without window, heads of one size for Q, K and V, experts with clamped activations."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_LAYERS, window_as_listed


def _derive(hp: HParams) -> HParams:
    return mixture.only_experts(window_as_listed(hp))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_head_k = hp.n_embd_head_k()
    n_q, n_kv = n_head_k * hp.n_head[0], n_head_k * hp.n_head_kv[0]
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, n_q, n_kv, n_kv)
        yield from blocks.norms(layer, n_head_k, roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, hp.n_ff_exp[0])


ARCHITECTURE = Architecture(
    name="maple",
    hparams=(
        RMS_EPSILON,
        replace(SLIDING_WINDOW, required=True),
        mixture.EXPERT_FF_REQUIRED,
        SWA_LAYERS,
        FREQ_BASE_SWA,
        replace(mixture.CLAMP_EXPERTS, required=True),
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({24: "20B"}),
    example={
        **ROUTED,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [True, False],
        mixture.CLAMP_EXPERTS.key: 7.0,
    },
)
