"""Apertus: normed Q and K, an ungated feed-forward whose activation has parameters for each layer."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.descriptor import as_read, by_layers
from app.architectures.hparams import Form, HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names

_ACTIVATION = tuple(
    HParam(f"xielu.{name}", Kind.F32, form=Form.PER_LAYER, required=True, bare=True)
    for name in ("alpha_n", "alpha_p", "beta", "eps")
)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    n_q, _, n_kv = blocks.head_widths(hp)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.rotary_tables(hp, layer)
        yield from blocks.qkv(hp, names, layer, n_q, n_kv, n_kv)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])
        for norm in (roles.ATTN_Q_NORM, roles.ATTN_K_NORM):
            yield need(norm, layer, hp.n_embd_head_k())
            yield may(norm.bias, layer, hp.n_embd_head_k())


ARCHITECTURE = replace(
    LLAMA,
    name="apertus",
    hparams=(*LLAMA.hparams, *_ACTIVATION),
    derive=as_read,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "8B"}),
    example={**LLAMA.example, **{param.key: 0.5 for param in _ACTIVATION}},
)
