"""Dots 3 Note: latent attention of two geometries, full and windowed, gated by head, with indexers in some layers."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, latent, mixture, roles
from app.architectures.attention_memory import attention, indexer
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, INDEXER, LATENT
from app.architectures.hparams import Form, HParam, HParams, Kind, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.window import SLIDING_WINDOW, given_window

_PATTERN = HParam("attention.sliding_window_pattern", form=Form.ARRAY, required=True)
_INDEXED = HParam("attention.indexer.types", form=Form.ARRAY, required=True)
_KV_RANK_SWA = "attention.kv_lora_rank_swa"
_KEY_SWA, _VALUE_SWA = "attention.key_length_mla_swa", "attention.value_length_mla_swa"


def _derive(hp: HParams) -> HParams:
    hp = latent.require_latent(latent.with_latent_heads(mixture.experts_after_dense(hp)))
    return given_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), hp.array(_PATTERN.key) or ())


def _sizes(hp: HParams, layer: int) -> latent.Latent:
    """A window, or a NextN block, has a geometry of its own; the rotated part is the first layer's everywhere."""
    full = replace(latent.sizes(hp), n_head=hp.n_head[layer])
    if not (hp.is_swa[layer] or layer >= hp.n_layer):
        return full
    return replace(full, head_k=hp.u32(_KEY_SWA), head_v=hp.u32(_VALUE_SWA), kv_rank=hp.u32(_KV_RANK_SWA))


def _indexers(hp: HParams) -> tuple[bool, ...]:
    """Which layers have an indexer: those of the trunk with a set flag."""
    padded = (*(hp.array(_INDEXED.key) or ()), *([0] * hp.n_layer))
    return tuple(flag != 0 for flag in padded[: hp.n_layer])


def _feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    if layer >= hp.n_layer or layer < hp.u32(mixture.LEADING_DENSE.key):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        return
    n_ff_exp = hp.n_ff_exp[0]
    yield from mixture.router(hp, layer, biased=True)
    yield from blocks.experts(hp, layer, n_ff_exp)
    yield from mixture.shared_expert(hp, layer, n_ff_exp * hp.u32(mixture.SHARED_COUNT.key))


def _layer(hp: HParams, layer: int, indexed: bool) -> Iterator[Expected]:
    sizes = _sizes(hp, layer)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from sizes.norms(layer)
    # the norm of the rotated part that all key heads share
    yield need(roles.ATTN_K_NORM, layer, sizes.n_rot)
    yield from sizes.queries(layer)
    yield from sizes.compressed(layer)
    yield from sizes.expanded(layer)
    yield from sizes.output(layer)
    yield need(roles.ATTN_GATE, layer, hp.n_embd, sizes.n_head)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    if indexed:
        yield from latent.indexer(hp, layer, sizes.q_rank)
    yield from _feed_forward(hp, layer)


def _nextn(hp: HParams, layer: int) -> Iterator[Expected]:
    yield from _layer(hp, layer, False)
    for item in blocks.nextn_head(hp, layer):
        if item.role is not roles.NEXTN_SHARED_HEAD_HEAD:
            yield item


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    indexers = _indexers(hp)
    for layer in range(hp.n_layer):
        yield from _layer(hp, layer, indexers[layer])
    for layer in range(hp.n_layer, hp.n_layer_all):
        yield from blocks.nextn_unused(_nextn(hp, layer), present=False)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """Full layers with their indexers' keys, then the windowed ones."""
    full = [layer for layer in range(hp.n_layer) if not hp.is_swa[layer]]
    windowed = [layer for layer in range(hp.n_layer) if hp.is_swa[layer]]
    indexed = [layer for layer, own in enumerate(_indexers(hp)) if own]
    yield from attention(hp, request, layers=full)
    yield from indexer(hp, request, head_size=hp.u32("attention.indexer.key_length"), layers=indexed)
    yield from attention(hp, request, layers=windowed, cells=request.window_cells(hp))


ARCHITECTURE = Architecture(
    name="dots3note",
    capabilities=Capabilities(tensor_split=False),
    hparams=(
        RMS_EPSILON,
        mixture.SHARED_COUNT_REQUIRED,
        mixture.EXPERT_FF_REQUIRED,
        replace(mixture.LEADING_DENSE, required=True),
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        mixture.GATING_FUNC_REQUIRED,
        replace(latent.Q_RANK, required=True),
        latent.KV_RANK,
        *latent.HEAD_LENGTHS,
        HParam(_KV_RANK_SWA, required=True),
        HParam(_KEY_SWA, required=True),
        HParam(_VALUE_SWA, required=True),
        replace(SLIDING_WINDOW, required=True),
        HParam("rope.freq_base_swa", Kind.F32, required=True),
        _PATTERN,
        *latent.INDEXER_KEYS,
        _INDEXED,
    ),
    derive=_derive,
    manifest=_manifest,
    memory=_memory,
    size_name=by_layers({46: "288B.A19B"}),
    example={
        **LATENT,
        **EXPERTS_AFTER_DENSE,
        **INDEXER,
        "expert_gating_func": 2,
        "attention.key_length_mla_swa": 32,
        "attention.value_length_mla_swa": 32,
        "attention.q_lora_rank": 32,
        "attention.kv_lora_rank_swa": 16,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [1, 0],
        "attention.indexer.types": [0, 1],
        "rope.freq_base_swa": 10000.0,
    },
)
