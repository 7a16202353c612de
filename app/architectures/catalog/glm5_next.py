"""GLM 5 Next: delta attention and sparse latent attention with pooled keys, residual streams, experts."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, latent, mixture, recurrent, roles, streams
from app.architectures.attention_memory import index_keys
from app.architectures.blocks import tensor
from app.architectures.common import NORM_EPSILON, RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, INDEXER, LATENT
from app.architectures.hparams import Form, HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.recurrent_memory import trunk_hybrid

_POOL, _TOP = "attention.indexer.kpool", "attention.indexer.top_k"


def _derive(hp: HParams) -> HParams:
    pool, top = hp.u32(_POOL), hp.u32(_TOP)
    if top % pool:
        raise bad_value(hp.arch, _TOP, top, f"a multiple of {pool}, the keys pooled together")
    latent.own_indexers(hp, ())
    hp = latent.with_latent_heads(recurrent.with_kda(mixture.with_expert_widths(hp)))
    return replace(
        hp,
        # the cache holds the narrow vector that K and V expand from
        n_embd_head_v_full=hp.u32(latent.KV_RANK.key),
        is_recr=tuple(kv == 0 for kv in hp.n_head_kv),
    )


def _sparse_latent(hp: HParams, layer: int, indexed: bool) -> Iterator[Expected]:
    sizes, width = latent.sizes(hp), hp.u32("attention.indexer.key_length")
    yield from sizes.attention(layer)
    yield from latent.indexer(hp, layer, sizes.q_rank, required=indexed)
    yield tensor(roles.INDEXER_KPOOL_GATE, layer, hp.n_embd, width, required=indexed)
    yield tensor(roles.INDEXER_KPOOL_APE, layer, width, hp.u32(_POOL), required=indexed)


def _routed(hp: HParams, layer: int) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[layer]
    yield from mixture.router(hp, layer, biased=True)
    yield from blocks.experts(hp, layer, n_ff_exp)
    yield from mixture.shared_expert(hp, layer, n_ff_exp * hp.u32(mixture.SHARED_COUNT.key))


def _layer(hp: HParams, names: Names, layer: int, indexed: bool) -> Iterator[Expected]:
    """One layer; of a NextN block only what is not its own kind of attention and feed-forward is loaded."""
    nextn = layer >= hp.n_layer

    def of_block(expected: Iterator[Expected]) -> Iterator[Expected]:
        return blocks.nextn_unused(expected, present=True) if nextn else expected

    yield from of_block(blocks.norms(layer, hp.n_embd, roles.ATTN_NORM, roles.FFN_NORM))
    if not nextn:
        yield from streams.mixers(hp, layer, square=True)
    if hp.is_recr[layer]:
        gate = recurrent.low_rank_gate(hp, layer)
        yield from recurrent.kda(hp, names, layer, decay=(hp.n_head[0],), gate=gate)
    else:
        yield from of_block(_sparse_latent(hp, layer, indexed))
    if layer < hp.u32(mixture.LEADING_DENSE.key):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
    else:
        yield from of_block(_routed(hp, layer))
    if nextn:
        yield from of_block(blocks.nextn_head(hp, layer))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    trunk = latent.own_indexers(hp, (True,) * hp.n_layer)
    for layer, indexed in enumerate(trunk + (True,) * hp.n_layer_nextn):
        yield from _layer(hp, names, layer, indexed)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """Latent vectors and states; an indexer keeps a key, its gate and its pool's key of every token."""
    yield from trunk_hybrid(hp, request)
    own = latent.own_indexers(hp, (True,) * hp.n_layer)
    indexed = [layer for layer in range(hp.n_layer) if own[layer] and not hp.is_recr[layer]]
    yield from index_keys(hp, request, width=3 * hp.u32("attention.indexer.key_length"), layers=indexed)


ARCHITECTURE = Architecture(
    name="glm5-next",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(
        RMS_EPSILON,
        replace(NORM_EPSILON, required=False),
        *latent.HEAD_LENGTHS,
        replace(latent.Q_RANK, required=True),
        latent.KV_RANK,
        *recurrent.KDA_KEYS,
        HParam("kda.gate_lower_bound", Kind.F32),
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_COUNT_REQUIRED,
        mixture.LEADING_DENSE,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        mixture.GATING_FUNC,
        HParam("swiglu_clamp_exp", Kind.F32, Form.PER_LAYER),
        HParam("swiglu_clamp_shexp", Kind.F32, Form.PER_LAYER),
        *latent.INDEXER_KEYS,
        HParam(_POOL, required=True, minimum=2),
        HParam("attention.indexer.kpool_select_tail", Kind.BOOL),
        latent.INDEXER_TYPES,
        HParam(streams.STREAM_COUNT, required=True, minimum=4, maximum=4),
        HParam("hyper_connection.sinkhorn_iterations", required=True),
        HParam("hyper_connection.epsilon", Kind.F32, required=True),
    ),
    derive=_derive,
    manifest=_manifest,
    memory=_memory,
    rope=RopeType.NONE,
    size_name=by_layers({45: "320B.A18B"}),
    example={
        **LATENT,
        **EXPERTS_AFTER_DENSE,
        **INDEXER,
        "attention.head_count_kv": [0, 1],
        "attention.q_lora_rank": 32,
        "attention.indexer.kpool": 4,
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6,
        "ssm.conv_kernel": 4,
        "kda.head_dim": 16,
    },
)
