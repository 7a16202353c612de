"""DeepSeek V3.2: DeepSeek V3 with sparse attention, whose keys an indexer chooses in every layer."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from app.architectures import blocks, latent, mixture, roles, rotary
from app.architectures.attention_memory import attention, indexer
from app.architectures.blocks import may, need
from app.architectures.catalog.deepseek2 import ARCHITECTURE as DEEPSEEK2
from app.architectures.catalog.deepseek2 import ROUTED_KEYS
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.hparams import HParam, HParams, Kind
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest

SPARSE_KEYS = (
    RMS_EPSILON,
    rotary.ROPE_SECTIONS,
    *ROUTED_KEYS,
    replace(latent.Q_RANK, required=True),
    latent.KV_RANK,
    latent.KEY_LENGTH,
    latent.VALUE_LENGTH,
    *latent.INDEXER_KEYS,
)


def derive(hp: HParams) -> HParams:
    """Latent attention always, experts after the dense layers."""
    return latent.require_latent(latent.with_latent_heads(mixture.experts_after_dense(hp)))


def _routed(hp: HParams, layer: int) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0]
    yield from mixture.router(hp, layer)
    yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
    yield from blocks.experts(hp, layer, n_ff_exp)
    yield from mixture.shared_expert(hp, layer, n_ff_exp * hp.u32(mixture.SHARED_COUNT.key))


def _layer(hp: HParams, layer: int, indexed: bool) -> Iterator[Expected]:
    sizes = latent.sizes(hp)
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from sizes.attention(layer)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield from latent.indexer(hp, layer, sizes.q_rank, required=indexed)
    if layer < hp.u32(mixture.LEADING_DENSE.key):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
    else:
        yield from _routed(hp, layer)


def _nextn(hp: HParams, layer: int, indexed: bool, present: bool) -> Iterator[Expected]:
    yield from blocks.nextn_unused(_layer(hp, layer, indexed), present=present)
    yield from blocks.nextn_unused(blocks.nextn_head(hp, layer), present=present)


def model(hp: HParams, names: Names, *, indexed: bool) -> Iterator[Expected]:
    """The whole model; `indexed`: an indexer is required in every layer."""
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    has_trunk = not blocks.trunk_is_missing(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.required_if(has_trunk, _layer(hp, layer, indexed))
    present = roles.NEXTN_EH_PROJ.tensor_name(hp.n_layer) in names
    for layer in range(hp.n_layer, hp.n_layer_all):
        for item in _nextn(hp, layer, indexed, present):
            # the bias of the router is loaded even where nothing else of its block is
            yield item._replace(unused=item.role is not roles.FFN_EXP_PROBS_B.bias)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from model(hp, names, indexed=True)


def memory(hp: HParams, request: MemoryRequest, indexed: Iterable[int]) -> Iterator[CacheTensor]:
    """The trunk's latent vectors, then the keys of the indexers in the layers `indexed`."""
    yield from attention(hp, request)
    yield from indexer(hp, request, head_size=hp.u32("attention.indexer.key_length"), layers=indexed)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    return memory(hp, request, range(hp.n_layer))


ARCHITECTURE = Architecture(
    name="deepseek32",
    capabilities=Capabilities(tensor_split=False),
    hparams=(*SPARSE_KEYS, mixture.GATING_FUNC_REQUIRED, HParam("rope.scaling.yarn_log_multiplier", Kind.F32)),
    derive=derive,
    manifest=_manifest,
    memory=_memory,
    size_name=by_layers({61: "685B.A37B"}),
    example={
        **DEEPSEEK2.example,
        "expert_gating_func": 2,
        "attention.indexer.head_count": 2,
        "attention.indexer.key_length": 32,
        "attention.indexer.top_k": 8,
    },
)
