"""Hunyuan V4: gated latent attention with sinks, indexers shared between layers, residual streams, experts."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, latent, mixture, roles, streams
from app.architectures.attention_memory import attention, every_layer, indexer
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, Capabilities
from app.architectures.examples import EXPERTS_AFTER_DENSE, INDEXER, LATENT
from app.architectures.hparams import Form, HParam, HParams, Kind
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest, refusal

_HEADS, _LENGTH, _TOP = (key.key for key in latent.INDEXER_KEYS)


def _derive(hp: HParams) -> HParams:
    hp = latent.require_latent(latent.with_latent_heads(mixture.experts_after_dense(hp)))
    if hp.u32(_TOP):
        if hp.u32(_HEADS) == 0:
            raise bad_value(hp.arch, _HEADS, 0, "at least 1")
        if hp.u32(_LENGTH) <= hp.n_rot():
            expected = f"more than {hp.n_rot()}, {hp.arch}.rope.dimension_count"
            raise bad_value(hp.arch, _LENGTH, hp.u32(_LENGTH), expected)
        if not any(_indexers(hp)[:1]):
            raise bad_value(hp.arch, latent.INDEXER_TYPES.key, 0, "an indexer in layer 0: later ones may share it")
    return latent.require_unrotated_part(hp)


def _indexers(hp: HParams) -> tuple[bool, ...]:
    """Which layers have an indexer of their own: none without a number of keys to choose."""
    none = (False,) * hp.n_layer
    return latent.own_indexers(hp, none) if hp.u32(_TOP) else none


def _attention(hp: HParams, layer: int, indexed: bool) -> Iterator[Expected]:
    sizes = latent.sizes(hp)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield need(roles.ATTN_SINKS, layer, sizes.n_head)
    yield from sizes.attention(layer)
    yield need(roles.ATTN_GATE, layer, hp.n_embd, sizes.n_head * sizes.head_v)
    if indexed:
        yield from latent.indexer(hp, layer, sizes.q_rank)


def _feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    if layer < hp.u32(mixture.LEADING_DENSE.key):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        return
    n_ff_exp = hp.n_ff_exp[0]
    yield from mixture.router(hp, layer)
    yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
    yield from blocks.experts(hp, layer, n_ff_exp)
    yield from mixture.shared_expert(hp, layer, n_ff_exp * hp.u32(mixture.SHARED_COUNT.key))


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    yield from streams.head(hp)
    for layer, indexed in enumerate(_indexers(hp)):
        yield from _attention(hp, layer, indexed)
        yield from streams.mixers(hp, layer, square=False)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from _feed_forward(hp, layer)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """Latent vectors, and the keys of the layers that have an indexer of their own. Raises PlanError."""
    yield from attention(hp, request, layers=every_layer(hp))
    if hp.u32(_TOP) == 0:
        return
    if hp.n_layer_nextn:
        raise refusal("nothing says whether a NextN layer has an indexer of its own", layer=hp.n_layer)
    indexed = [layer for layer, own in enumerate(_indexers(hp)) if own]
    yield from indexer(hp, request, head_size=hp.u32(_LENGTH), layers=indexed)


ARCHITECTURE = Architecture(
    name="hy_v4",
    capabilities=Capabilities(tensor_split=False),
    hparams=(
        RMS_EPSILON,
        mixture.LEADING_DENSE,
        replace(latent.Q_RANK, required=True),
        latent.KV_RANK,
        *latent.HEAD_LENGTHS,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_COUNT_REQUIRED,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        mixture.GATING_FUNC,
        HParam("swiglu_clamp_exp", Kind.F32, Form.PER_LAYER),
        HParam(streams.STREAM_COUNT, required=True),
        HParam("hyper_connection.epsilon", Kind.F32, required=True),
        HParam("hyper_connection.magnitude", Kind.F32, required=True),
        *(replace(key, required=False, default=0) for key in latent.INDEXER_KEYS),
        latent.INDEXER_TYPES,
    ),
    derive=_derive,
    manifest=_manifest,
    memory=_memory,
    example={
        **LATENT,
        **EXPERTS_AFTER_DENSE,
        **INDEXER,
        "attention.q_lora_rank": 32,
        "attention.indexer.types": [1, 0],
        "hyper_connection.count": 2,
        "hyper_connection.epsilon": 1e-6,
        "hyper_connection.magnitude": 1.0,
    },
)
