"""dots.llm1: normed Q and K with a key head per query head, leading dense layers, then routed and shared experts."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.deepseek import ARCHITECTURE as DEEPSEEK
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp, n_q = hp.n_ff_exp[0], hp.n_embd_head_k() * hp.n_head[0]
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, n_q, n_q, n_q)
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_K_NORM, roles.ATTN_Q_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        if mixture.is_dense(hp, layer):
            yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        else:
            yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)
            yield may(roles.FFN_EXP_PROBS_B.bias, layer, hp.n_expert)
            yield from blocks.experts(hp, layer, n_ff_exp)
            yield from mixture.shared_expert(hp, layer, n_ff_exp * hp.u32(mixture.SHARED_COUNT.key))


ARCHITECTURE = Architecture(
    name="dots1",
    hparams=(*DEEPSEEK.hparams, mixture.WEIGHTS_NORM, mixture.GATING_FUNC),
    derive=mixture.experts_after_dense,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({62: "142B"}),
    example={**DEEPSEEK.example, "attention.head_count_kv": 4},
)
