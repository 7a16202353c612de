"""Ling 3: delta attention with full-rank decay and gate, some layers of latent attention with a gate per head."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from app.architectures import blocks, latent, mixture, recurrent, roles, rotary
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture, Capabilities
from app.architectures.examples import EXPERTS_AFTER_DENSE, LATENT
from app.architectures.hparams import Form, HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names

_SAFE_GATE, _GATE_BOUND = "kda.safe_gate", "kda.gate_lower_bound"


def _derive(hp: HParams) -> HParams:
    if not hp.u32(_SAFE_GATE):
        raise bad_value(hp.arch, _SAFE_GATE, "false", "true")
    if not hp.number(_GATE_BOUND) < 0:
        raise bad_value(hp.arch, _GATE_BOUND, hp.number(_GATE_BOUND), "less than 0")
    hp = latent.with_latent_heads(recurrent.with_kda(mixture.with_expert_widths(hp)))
    return recurrent.recurrent_without_keys(hp)


def _delta(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    head, n_head = hp.n_embd_head_kda, hp.n_head[0]
    inner = head * n_head
    yield from recurrent.kda_inputs(hp, names, layer)
    yield need(roles.SSM_F_A, layer, hp.n_embd, inner)
    yield need(roles.SSM_BETA, layer, hp.n_embd, n_head)
    yield need(roles.SSM_A_NOSCAN, layer, 1, n_head)
    yield need(roles.SSM_DT.bias, layer, inner)
    yield need(roles.SSM_G_A, layer, hp.n_embd, inner)
    yield need(roles.SSM_NORM, layer, head)
    yield need(roles.ATTN_OUT, layer, inner, hp.n_embd)


def _latent(hp: HParams, layer: int) -> Iterator[Expected]:
    sizes = latent.sizes(hp)
    yield from sizes.norms(layer)
    yield from sizes.queries(layer)
    yield from sizes.compressed(layer)
    yield from sizes.expanded(layer)
    yield need(roles.ATTN_GATE, layer, hp.n_embd, sizes.n_head)
    yield from sizes.output(layer)


def _experts(hp: HParams, layer: int) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0]
    n_ff_shared = hp.u32(mixture.SHARED_FF.key) or n_ff_exp * max(1, hp.u32(mixture.SHARED_COUNT.key))
    yield from mixture.router(hp, layer, biased=True)
    yield from blocks.experts(hp, layer, n_ff_exp)
    yield from mixture.shared_expert(hp, layer, n_ff_shared)


def _layer(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from _delta(hp, names, layer) if hp.is_recr[layer] else _latent(hp, layer)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    if layer < hp.u32(mixture.LEADING_DENSE.key):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
    else:
        yield from _experts(hp, layer)


def _nextn(hp: HParams, layer: int) -> Iterator[Expected]:
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from _latent(hp, layer)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield from _experts(hp, layer)
    yield need(roles.NEXTN_EH_PROJ, layer, 2 * hp.n_embd, hp.n_embd)
    yield need(roles.NEXTN_ENORM, layer, hp.n_embd)
    yield need(roles.NEXTN_HNORM, layer, hp.n_embd)
    yield need(roles.LAYER_OUT_NORM, layer, hp.n_embd)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    trunk = chain.from_iterable(_layer(hp, names, layer) for layer in range(hp.n_layer))
    yield from blocks.required_if(not blocks.trunk_is_missing(hp, names), trunk)
    present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
    for layer in range(hp.n_layer, hp.n_layer_all):
        yield from blocks.nextn_unused(_nextn(hp, layer), present=present)


def _rope(hp: HParams) -> RopeType:
    return RopeType.MROPE if rotary.uses_mrope(hp) else RopeType.NORM


def _size_name(hp: HParams) -> str:
    sizes = {(24, 1536, 128): "7.9B.A1.3B", (42, 2560, 512): "124B.A5.1B"}
    return sizes.get((hp.n_layer, hp.n_embd, hp.n_expert), UNKNOWN_SIZE)


ARCHITECTURE = Architecture(
    name="bailingmoe3",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(
        RMS_EPSILON,
        *latent.HEAD_LENGTHS,
        latent.KV_RANK,
        latent.Q_RANK,
        *recurrent.KDA_KEYS,
        HParam(_SAFE_GATE, Kind.BOOL, default=True),
        HParam(_GATE_BOUND, Kind.F32, required=True),
        rotary.ROPE_SECTIONS,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_FF,
        mixture.SHARED_COUNT_REQUIRED,
        replace(mixture.LEADING_DENSE, required=True),
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        mixture.GATING_FUNC_REQUIRED,
        HParam("swiglu_clamp_exp", Kind.F32, Form.PER_LAYER),
        HParam("swiglu_clamp_shexp", Kind.F32, Form.PER_LAYER),
    ),
    derive=_derive,
    manifest=_manifest,
    rope=_rope,
    size_name=_size_name,
    example={
        **LATENT,
        **EXPERTS_AFTER_DENSE,
        "expert_gating_func": 2,
        "attention.head_count_kv": [0, 1],
        "attention.q_lora_rank": 32,
        "ssm.conv_kernel": 4,
        "kda.head_dim": 16,
        "kda.gate_lower_bound": -5.0,
    },
)
