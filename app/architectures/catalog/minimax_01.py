"""MiniMax-Text-01: seven lightning-attention layers to one full-attention layer, experts in every layer."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, mixture, recurrent, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.recurrent_memory import trunk_hybrid


def _derive(hp: HParams) -> HParams:
    return recurrent.recurrent_by_interval(replace(hp, n_embd_head_la=hp.n_embd_head_k_full))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_q, n_ff = hp.n_embd_head_k() * hp.n_head[0], hp.n_ff[0]
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        if hp.is_recr[layer]:
            yield from recurrent.lightning(hp, layer)
        else:
            yield from blocks.qkv(hp, names, layer, n_q, hp.n_embd_k_gqa(), hp.n_embd_v_gqa())
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.router(hp, layer)
        yield may(roles.FFN_GATE_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)
        yield need(roles.FFN_DOWN_EXPS, layer, n_ff, hp.n_embd, hp.n_expert)
        yield need(roles.FFN_UP_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)


ARCHITECTURE = Architecture(
    name="minimax-01",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(
        RMS_EPSILON,
        HParam("residual_scale", Kind.F32, required=True),
        recurrent.RECURRENT_LAYERS,
        replace(recurrent.FULL_ATTENTION_INTERVAL, default=8),
    ),
    derive=_derive,
    manifest=_manifest,
    memory=trunk_hybrid,
    rope=RopeType.NEOX,
    size_name=by_layers({80: "456B"}),
    example={**DENSE, "expert_count": 4, "expert_used_count": 2, "residual_scale": 3.5, "full_attention_interval": 2},
)
