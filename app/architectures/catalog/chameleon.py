"""Chameleon: Llama with a norm of its own for each head of Q and K."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import SMALL
from app.architectures.hparams import HParam, HParams, Kind
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    head, n_head, n_kv, n_gqa = hp.n_embd_head_k(), hp.n_head[0], hp.n_head_kv[0], hp.n_embd_v_gqa()
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_Q_NORM, layer, head, n_head)
        yield need(roles.ATTN_K_NORM, layer, head, n_kv)
        yield may(roles.ATTN_Q_NORM.bias, layer, head, n_head)
        yield may(roles.ATTN_K_NORM.bias, layer, head, n_kv)
        yield from blocks.qkv(hp, names, layer, hp.n_embd, n_gqa, n_gqa)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="chameleon",
    hparams=(RMS_EPSILON, HParam("swin_norm", Kind.BOOL)),
    manifest=_manifest,
    size_name=by_layers({32: "7B", 48: "34B"}),
    example={**SMALL, "attention.layer_norm_rms_epsilon": 1e-5},
)
