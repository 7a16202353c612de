"""DeepSeek V2, V3 and relatives: latent attention, dense layers first, then routed experts with shared ones."""

from collections.abc import Iterator

from app.architectures import blocks, latent, mixture, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON, require
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, LATENT
from app.architectures.hparams import HParam, HParams, Kind
from app.architectures.manifest import Expected, Names

ROUTED_KEYS = (
    mixture.LEADING_DENSE,
    mixture.EXPERT_FF_REQUIRED,
    mixture.SHARED_COUNT_REQUIRED,
    mixture.WEIGHTS_SCALE,
    mixture.WEIGHTS_NORM,
)


def routed(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    """A router with an optional bias, routed experts and the shared ones as one."""
    n_ff_exp = hp.n_ff_exp[0]
    yield from mixture.router(hp, layer)
    yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff_exp, hp.n_embd, hp.n_expert)
    yield from blocks.fused_experts(hp, names, layer, n_ff_exp)
    yield from mixture.shared_expert(hp, layer, n_ff_exp * hp.u32(mixture.SHARED_COUNT.key))


def _is_lite(hp: HParams) -> bool:
    """Smaller models project the query at once, whatever rank their file gives."""
    n_vocab = hp.u32("vocab_size") if hp.given("vocab_size") else hp.n_vocab
    return hp.n_layer in (26, 27) or (hp.n_layer == 48 and n_vocab == 128256)


def _derive(hp: HParams) -> HParams:
    if not _is_lite(hp):
        require(hp, latent.Q_RANK.key)
    return latent.require_unrotated_part(latent.with_latent_heads(mixture.experts_after_dense(hp)))


def _attention(hp: HParams, layer: int) -> Iterator[Expected]:
    sizes = latent.sizes(hp, q_rank=0 if _is_lite(hp) else hp.u32(latent.Q_RANK.key))
    yield from sizes.norms(layer)
    yield from sizes.queries(layer)
    yield from sizes.compressed(layer)
    # files without the head sizes of expanded keys are older and hold both expansions in one tensor
    yield from sizes.expanded(layer) if hp.is_mla else sizes.fused(layer)
    yield from sizes.output(layer)


def _layer(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from _attention(hp, layer)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    if layer < hp.u32(mixture.LEADING_DENSE.key):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
    else:
        yield from routed(hp, names, layer)


def _nextn(hp: HParams, names: Names, layer: int) -> Iterator[Expected]:
    yield from _layer(hp, names, layer)
    yield from blocks.nextn_head(hp, layer)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    has_trunk = not blocks.trunk_is_missing(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.required_if(has_trunk, _layer(hp, names, layer))
    present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
    for layer in range(hp.n_layer, hp.n_layer_all):
        yield from blocks.nextn_unused(_nextn(hp, names, layer), present=present)


ARCHITECTURE = Architecture(
    name="deepseek2",
    capabilities=Capabilities(tensor_split=False),
    hparams=(
        HParam("vocab_size"),
        RMS_EPSILON,
        HParam(latent.Q_RANK.key),
        latent.KV_RANK,
        latent.KEY_LENGTH,
        latent.VALUE_LENGTH,
        *ROUTED_KEYS,
        mixture.GATING_FUNC,
        HParam("rope.scaling.yarn_log_multiplier", Kind.F32),
        HParam("attention.temperature_scale", Kind.F32),
        HParam("attention.temperature_length"),
    ),
    derive=_derive,
    manifest=_manifest,
    size_name=by_layers({27: "16B", 47: "30B.A3B", 60: "236B", 61: "671B"}),
    example={**LATENT, **EXPERTS_AFTER_DENSE, "attention.q_lora_rank": 32},
)
