"""MiniMax M3: block-sparse attention chosen by an indexer, experts with a shared one after some dense layers."""

from collections.abc import Iterator

from app.architectures import blocks, latent, mixture, roles
from app.architectures.attention_memory import attention, every_layer, indexer
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import DENSE, EXPERTS_AFTER_DENSE, INDEXER
from app.architectures.hparams import HParam, HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest


def _sparse(hp: HParams, layer: int) -> Iterator[Expected]:
    """The experts of a sparse layer, and the indexer that chooses its blocks of keys."""
    heads, width = hp.u32("attention.indexer.head_count"), hp.u32("attention.indexer.key_length")
    yield from mixture.router(hp, layer, biased=True)
    yield from blocks.experts(hp, layer, hp.n_ff_exp[0])
    yield from mixture.shared_expert(hp, layer, hp.n_ff_exp[0] * hp.u32(mixture.SHARED_COUNT.key))
    yield need(roles.INDEXER_Q_PROJ, layer, hp.n_embd, heads * width)
    yield need(roles.INDEXER_K_PROJ, layer, hp.n_embd, width)
    yield need(roles.INDEXER_Q_NORM, layer, width)
    yield need(roles.INDEXER_K_NORM, layer, width)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    head = hp.n_embd_head_k()
    n_q, n_gqa = head * hp.n_head[0], hp.n_embd_v_gqa()
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.qkv(hp, names, layer, n_q, n_gqa, n_gqa)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_Q_NORM, layer, head)
        yield need(roles.ATTN_K_NORM, layer, head)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        if layer < hp.u32(mixture.LEADING_DENSE.key):
            yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        else:
            yield from _sparse(hp, layer)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """All layers attend; the sparse ones keep what their indexer chooses by."""
    yield from attention(hp, request, layers=every_layer(hp))
    sparse = range(hp.u32(mixture.LEADING_DENSE.key), hp.n_layer_all)
    yield from indexer(hp, request, head_size=hp.u32("attention.indexer.key_length"), layers=sparse)


ARCHITECTURE = Architecture(
    name="minimax-m3",
    capabilities=Capabilities(tensor_split=False),
    hparams=(
        RMS_EPSILON,
        mixture.LEADING_DENSE,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_COUNT_REQUIRED,
        mixture.WEIGHTS_SCALE,
        mixture.WEIGHTS_NORM,
        mixture.GATING_FUNC_REQUIRED,
        *latent.INDEXER_KEYS,
        HParam("attention.indexer.block_size", required=True, minimum=1),
        HParam("attention.indexer.local_blocks", required=True),
    ),
    derive=mixture.with_expert_widths,
    manifest=_manifest,
    memory=_memory,
    rope=RopeType.NEOX,
    size_name=by_layers({60: "428B.A23B"}),
    example={
        **DENSE,
        **EXPERTS_AFTER_DENSE,
        **INDEXER,
        "expert_gating_func": 2,
        "attention.indexer.top_k": 2,
        "attention.indexer.block_size": 16,
        "attention.indexer.local_blocks": 1,
    },
)
