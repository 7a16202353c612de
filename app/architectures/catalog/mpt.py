"""MPT: fused QKV with clamped values, linear position biases in place of positions, optional biases."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.gpt2 import ARCHITECTURE as GPT2
from app.architectures.descriptor import Capabilities, by_layers
from app.architectures.hparams import HParam, HParams, Kind
from app.architectures.manifest import Expected, Names
from app.architectures.roles import Role

ALIBI_BIAS = HParam("attention.max_alibi_bias", Kind.F32)


def with_alibi(hp: HParams) -> HParams:
    """Linear position biases where the file gives their largest slope."""
    return replace(hp, use_alibi=hp.number(ALIBI_BIAS.key) > 0)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield may(roles.POS_EMBD, None, hp.n_embd, hp.n_ctx_train)
    yield from _with_bias(roles.OUTPUT_NORM, None, hp.n_embd)
    yield from blocks.output(hp, names, norm=False)
    n_qkv = sum(blocks.model_widths(hp))
    for layer in range(hp.n_layer):
        yield from _with_bias(roles.ATTN_NORM, layer, hp.n_embd)
        yield from _with_bias(roles.ATTN_QKV, layer, hp.n_embd, n_qkv)
        yield from _with_bias(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield from _with_bias(roles.FFN_NORM, layer, hp.n_embd)
        yield from _with_bias(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield from _with_bias(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])
        for norm in (roles.ATTN_Q_NORM, roles.ATTN_K_NORM):
            yield from blocks.layer_norm(norm, layer, hp.n_embd, required=False)
        # activation scales of AWQ files
        yield may(roles.FFN_ACT.part("scales"), layer, hp.n_ff[0])


def _with_bias(role: Role, layer: int | None, *shape: int) -> Iterator[Expected]:
    yield need(role, layer, *shape)
    yield may(role.bias, layer, shape[-1])


ARCHITECTURE = replace(
    GPT2,
    name="mpt",
    capabilities=Capabilities(tensor_split=False),
    hparams=(*GPT2.hparams, HParam("attention.clamp_kqv", Kind.F32), ALIBI_BIAS),
    derive=with_alibi,
    manifest=_manifest,
    size_name=by_layers({32: "7B", 48: "30B"}),
)
