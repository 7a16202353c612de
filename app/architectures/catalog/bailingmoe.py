"""Ling (Bailing MoE): heads as wide as their rotation, routed and shared experts in every layer."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.catalog.deepseek import ARCHITECTURE as DEEPSEEK
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0]
    n_q, n_kv = hp.n_head[0] * hp.n_rot(), hp.n_head_kv[0] * hp.n_rot()
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, n_q, n_kv, n_kv)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, n_ff_exp)
        yield from mixture.shared_expert(hp, layer, n_ff_exp * hp.u32(mixture.SHARED_COUNT.key))


ARCHITECTURE = Architecture(
    name="bailingmoe",
    hparams=(*DEEPSEEK.hparams, mixture.WEIGHTS_NORM),
    derive=mixture.only_experts,
    manifest=_manifest,
    size_name=by_layers({28: "16B", 88: "290B"}),
    example=DEEPSEEK.example,
)
