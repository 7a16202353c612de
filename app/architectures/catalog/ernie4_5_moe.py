"""ERNIE 4.5 MoE: dense layers first, then routed experts with a shared one."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import roles
from app.architectures.blocks import may, need
from app.architectures.catalog.ernie4_5 import ARCHITECTURE as ERNIE
from app.architectures.catalog.ernie4_5 import dense
from app.architectures.catalog.ernie4_5 import manifest as ernie_manifest
from app.architectures.examples import EXPERTS
from app.architectures.hparams import HParam, HParams
from app.architectures.manifest import Expected, Names
from app.architectures.mixture import (
    EXPERT_FF_REQUIRED,
    LEADING_DENSE,
    SHARED_FF,
    is_dense,
    router,
    shared_expert,
    with_expert_widths,
)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    return ernie_manifest(hp, names, _feed_forward)


def _feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    if is_dense(hp, layer):
        yield from dense(hp, layer)
        return
    n_ff_exp, n_ff_shared = hp.n_ff_exp[0], hp.u32(SHARED_FF.key)
    yield from router(hp, layer)
    yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
    yield may(roles.FFN_GATE_EXPS, layer, hp.n_embd, n_ff_exp, hp.n_expert)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff_exp, hp.n_embd, hp.n_expert)
    yield need(roles.FFN_UP_EXPS, layer, hp.n_embd, n_ff_exp, hp.n_expert)
    if n_ff_shared:
        yield from shared_expert(hp, layer, n_ff_shared)


ARCHITECTURE = replace(
    ERNIE,
    name="ernie4_5-moe",
    hparams=(
        *ERNIE.hparams,
        EXPERT_FF_REQUIRED,
        SHARED_FF,
        HParam("interleave_moe_layer_step", required=True),
        LEADING_DENSE,
    ),
    derive=with_expert_widths,
    manifest=_manifest,
    example={
        **ERNIE.example,
        **EXPERTS,
        "leading_dense_block_count": 1,
        "interleave_moe_layer_step": 1,
        "expert_shared_feed_forward_length": 256,
    },
)
