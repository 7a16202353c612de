"""MiniCPM 3: latent attention with both expansions in one tensor, LongRoPE tables."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, latent, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    sizes = latent.sizes(hp)
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_Q_A_NORM, layer, sizes.q_rank)
        yield need(roles.ATTN_KV_A_NORM, layer, sizes.kv_rank)
        yield need(roles.ATTN_Q_A, layer, hp.n_embd, sizes.q_rank)
        yield need(roles.ATTN_Q_B, layer, sizes.q_rank, sizes.n_head * sizes.head_k)
        yield from sizes.compressed(layer)
        yield from sizes.fused(layer)
        yield from sizes.output(layer)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        yield from blocks.rotary_factors(layer, sizes.n_rot, roles.ROPE_FACTORS_LONG, roles.ROPE_FACTORS_SHORT)


ARCHITECTURE = Architecture(
    name="minicpm3",
    capabilities=Capabilities(tensor_split=False),
    hparams=(RMS_EPSILON, replace(latent.Q_RANK, required=True), latent.KV_RANK),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({62: "4B"}),
    example={
        **DENSE,
        "embedding_length": 64,
        "attention.head_count_kv": 4,
        "attention.key_length": 48,
        "attention.value_length": 32,
        "attention.q_lora_rank": 32,
        "attention.kv_lora_rank": 32,
        "rope.dimension_count": 16,
    },
)
