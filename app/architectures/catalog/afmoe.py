"""AFMoE (Arcee Trinity): gated attention, three layers with a window to one without, norms on both sides, experts."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, optional_window


def _derive(hp: HParams) -> HParams:
    return mixture.with_expert_widths(optional_window(hp, period=4))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_q, n_k, n_v = blocks.head_widths(hp)
    n_ff_exp, n_shared = hp.n_ff_exp[0], hp.u32(mixture.SHARED_COUNT.key)
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.norms(layer, hp.n_embd, roles.ATTN_NORM, roles.ATTN_POST_NORM)
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_Q_NORM, roles.ATTN_K_NORM)
        yield need(roles.ATTN_GATE, layer, hp.n_embd, n_q)
        yield from blocks.norms(layer, hp.n_embd, roles.FFN_NORM, roles.FFN_POST_NORM)
        if mixture.is_dense(hp, layer):
            yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
            continue
        yield from mixture.router(hp, layer, biased=True)
        yield from blocks.experts(hp, layer, n_ff_exp)
        if n_shared:
            yield from mixture.shared_expert(hp, layer, n_ff_exp * n_shared)


ARCHITECTURE = Architecture(
    name="afmoe",
    hparams=(
        RMS_EPSILON,
        mixture.LEADING_DENSE,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_COUNT_REQUIRED,
        mixture.GATING_FUNC,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        SLIDING_WINDOW,
        SWA_PATTERN,
        FREQ_BASE_SWA,
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "26B", 56: "6B"}),
    example={**ROUTED, **EXPERTS_AFTER_DENSE, "block_count": 4, "attention.sliding_window": 32},
)
