"""Kimi Linear: delta attention with a decay per channel, some layers of latent attention without rotation, experts."""

from collections.abc import Iterator

from app.architectures import blocks, latent, mixture, recurrent, roles
from app.architectures.blocks import need, tensor
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, LATENT
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names

ROUTED_KEYS = (
    mixture.EXPERT_FF_REQUIRED,
    mixture.SHARED_COUNT_REQUIRED,
    mixture.LEADING_DENSE,
    mixture.WEIGHTS_SCALE,
    mixture.GATING_FUNC_REQUIRED,
)


def with_delta_and_latent(hp: HParams) -> HParams:
    """Layers without key heads are delta attention, the others latent attention."""
    hp = latent.with_latent_heads(recurrent.with_kda(mixture.with_expert_widths(hp)))
    return recurrent.recurrent_without_keys(hp)


def latent_inputs(hp: HParams, names: Names, layer: int, q_rank: int) -> Iterator[Expected]:
    """Latent attention up to its output: the file's tensors say whether the query is narrow and K and V fused."""
    narrowed = roles.ATTN_Q_A.tensor_name(layer) in names
    narrow_query = narrowed or roles.ATTN_Q_A_NORM.tensor_name(layer) in names
    sizes = latent.sizes(hp, q_rank=q_rank if narrow_query else 0)
    yield tensor(roles.ATTN_Q_A_NORM, layer, q_rank, required=narrowed)
    yield need(roles.ATTN_KV_A_NORM, layer, sizes.kv_rank)
    if narrow_query:
        yield need(roles.ATTN_Q_A, layer, hp.n_embd, q_rank)
        yield need(roles.ATTN_Q_B, layer, q_rank, sizes.n_head * sizes.head_k)
    else:
        yield from sizes.queries(layer)
    yield from sizes.compressed(layer)
    yield from sizes.fused(layer, required=False)
    if roles.ATTN_KV_B.tensor_name(layer) not in names:
        yield from sizes.expanded(layer)


def shared_width(hp: HParams) -> int:
    """The width of the shared experts together: at least one expert's."""
    return hp.n_ff_exp[0] * max(hp.u32(mixture.SHARED_COUNT.key), 1)


def _feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    if layer < hp.u32(mixture.LEADING_DENSE.key):
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        return
    yield from mixture.router(hp, layer)
    yield from blocks.experts(hp, layer, hp.n_ff_exp[0])
    yield from mixture.shared_expert(hp, layer, shared_width(hp), required=False)
    yield need(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        if hp.is_recr[layer]:
            gate = recurrent.low_rank_gate(hp, layer)
            yield from recurrent.kda(hp, names, layer, decay=(1, hp.n_head[0]), gate=gate)
        else:
            yield from latent_inputs(hp, names, layer, 0)
            yield from latent.sizes(hp, q_rank=0).output(layer)
        yield from _feed_forward(hp, layer)


ARCHITECTURE = Architecture(
    name="kimi-linear",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(RMS_EPSILON, *latent.HEAD_LENGTHS, latent.KV_RANK, *recurrent.KDA_KEYS, *ROUTED_KEYS),
    derive=with_delta_and_latent,
    manifest=_manifest,
    rope=RopeType.NONE,
    size_name=by_layers({27: "48B.A3B"}),
    example={
        **LATENT,
        **EXPERTS_AFTER_DENSE,
        "expert_gating_func": 2,
        "attention.head_count_kv": [0, 4],
        "ssm.conv_kernel": 4,
        "kda.head_dim": 16,
    },
)
