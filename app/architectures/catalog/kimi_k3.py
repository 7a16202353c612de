"""Kimi K3: Kimi Linear with a full-rank gate, experts in a narrow space of their own and scored residual streams."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, latent, mixture, recurrent, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.kimi_linear import ARCHITECTURE as KIMI_LINEAR
from app.architectures.catalog.kimi_linear import latent_inputs, shared_width, with_delta_and_latent
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParam, HParams, Kind
from app.architectures.manifest import Expected, Names

_LATENT = "expert_latent_length"
_RESIDUAL_BLOCK = "attn_res.block_size"


def _derive(hp: HParams) -> HParams:
    # the cache holds the narrow vector that K and V expand from
    return replace(with_delta_and_latent(hp), n_embd_head_v_full=hp.u32(latent.KV_RANK.key))


def _attention(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    sizes = latent.sizes(hp)
    if hp.is_recr[layer]:
        gate = need(roles.SSM_G, layer, hp.n_embd, hp.n_embd_head_kda * hp.n_head[0])
        yield from recurrent.kda(hp, names, layer, decay=(hp.n_head[0],), gate=[gate])
        return
    yield from latent_inputs(hp, names, layer, sizes.q_rank)
    yield may(roles.ATTN_GATE, layer, hp.n_embd, sizes.n_head * sizes.head_v)
    yield from sizes.output(layer)


def _feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    if layer < hp.u32(mixture.LEADING_DENSE.key):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        return
    width, n_ff = hp.u32(_LATENT) or hp.n_embd, hp.n_ff_exp[0]
    yield from mixture.router(hp, layer, biased=True)
    yield need(roles.FFN_GATE_EXPS, layer, width, n_ff, hp.n_expert)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff, width, hp.n_expert)
    yield need(roles.FFN_UP_EXPS, layer, width, n_ff, hp.n_expert)
    if hp.u32(_LATENT):
        yield need(roles.FFN_ROUTED_DOWN, layer, hp.n_embd, width)
        yield need(roles.FFN_ROUTED_UP, layer, width, hp.n_embd)
        yield may(roles.FFN_ROUTED_NORM, layer, width)
    yield from mixture.shared_expert(hp, layer, shared_width(hp), required=False)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    scored = hp.u32(_RESIDUAL_BLOCK) > 0
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    if scored:
        yield need(roles.OUTPUT_RES_SCORE, None, hp.n_embd)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        if scored:
            yield need(roles.ATTN_RES_SCORE, layer, hp.n_embd)
            yield need(roles.FFN_RES_SCORE, layer, hp.n_embd)
        yield from _attention(hp, names, layer)
        yield from _feed_forward(hp, layer)


ARCHITECTURE = replace(
    KIMI_LINEAR,
    name="kimi-k3",
    hparams=(
        *KIMI_LINEAR.hparams,
        latent.Q_RANK,
        HParam("kda.gate_lower_bound", Kind.F32),
        mixture.WEIGHTS_NORM,
        HParam(_LATENT, default=0),
        HParam(_RESIDUAL_BLOCK, required=True),
        HParam("activation.situ_beta", Kind.F32, required=True),
        HParam("activation.situ_linear_beta", Kind.F32, required=True),
    ),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({93: "2.8T.A50B"}),
    example={
        **KIMI_LINEAR.example,
        "attention.q_lora_rank": 32,
        "expert_latent_length": 32,
        "attn_res.block_size": 2,
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0,
    },
)
