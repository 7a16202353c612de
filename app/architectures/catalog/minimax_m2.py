"""MiniMax M2: Q and K normed over all heads at once, sigmoid-routed experts with a choice bias in every layer."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_q, n_k, n_v = blocks.equal_kv_widths(hp)
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_Q_NORM, layer, n_q)
        yield need(roles.ATTN_K_NORM, layer, hp.n_embd_k_gqa())
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, hp.n_ff[0])
        yield need(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)


ARCHITECTURE = Architecture(
    name="minimax-m2",
    capabilities=Capabilities(tensor_split=False),
    hparams=(RMS_EPSILON, mixture.EXPERT_FF_REQUIRED, mixture.GATING_FUNC),
    derive=mixture.with_expert_widths,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({62: "230B.A10B"}),
    example=ROUTED,
)
