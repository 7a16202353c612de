"""Step 3.5: heads and rotation differ with and without window, gated heads, any mix of feed-forwards, NextN layers."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import may, need, tensor
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_LAYERS, window_as_listed


def _derive(hp: HParams) -> HParams:
    hp = mixture.with_expert_widths(window_as_listed(hp))
    # full layers rotate half of what the file says
    return replace(hp, n_rot_full=hp.n_rot_full // 2)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    trunk_is_missing = blocks.trunk_is_missing(hp, names)
    present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
    # one table for all layers, as long as the widest rotation
    n_rot = max((hp.n_rot(layer) for layer in range(hp.n_layer)), default=0) or hp.n_rot()
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield tensor(roles.OUTPUT, None, hp.n_embd, hp.n_vocab, required=not trunk_is_missing)
    for layer in range(hp.n_layer_all):
        core = _core(hp, names, layer)
        if layer >= hp.n_layer:
            core = blocks.nextn_unused(core, present=present)
        elif trunk_is_missing:
            core = blocks.optional(core)
        norm, *projections, ffn_norm = core
        yield norm
        yield may(roles.ATTN_Q_NORM, layer, hp.n_embd_head_k())
        yield may(roles.ATTN_K_NORM, layer, hp.n_embd_head_k())
        yield from blocks.rotary_tables(hp, layer, n_rot)
        yield from projections
        yield may(roles.ATTN_GATE, layer, hp.n_embd, hp.n_head[layer])
        yield ffn_norm
        yield from _feed_forward(hp, layer)
        if layer >= hp.n_layer:
            yield from blocks.nextn_unused(blocks.nextn_joint(hp, layer), present=present)
            yield from blocks.nextn_tables(hp, layer)


def _core(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    """What a layer cannot do without, its two norms first and last."""
    n_head, in_trunk = hp.n_head[layer], layer < hp.n_layer
    n_q, n_k, n_v = hp.n_embd_head_k() * n_head, hp.n_embd_k_gqa(layer), hp.n_embd_v_gqa(layer)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v, required=in_trunk)
    yield need(roles.ATTN_OUT, layer, hp.n_embd_head_v() * n_head, hp.n_embd)
    yield need(roles.FFN_NORM, layer, hp.n_embd)


def _feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    yield from blocks.gated_ffn(hp, layer, hp.n_ff[0], required=False)
    yield from mixture.routed(hp, layer, hp.n_ff_exp[0], required=False)
    yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
    yield from mixture.shared_expert(hp, layer, hp.u32(mixture.SHARED_FF.key), required=False)


ARCHITECTURE = Architecture(
    name="step35",
    hparams=(
        RMS_EPSILON,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_FF,
        mixture.GATING_FUNC,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        replace(SLIDING_WINDOW, required=True),
        FREQ_BASE_SWA,
        SWA_LAYERS,
        mixture.CLAMP_EXPERTS,
        mixture.CLAMP_SHARED,
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({45: "196B.A11B"}),
    example={
        **ROUTED,
        "attention.head_count": [4, 8],
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [False, True],
    },
)
