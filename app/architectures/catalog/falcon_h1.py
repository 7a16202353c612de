"""Falcon H1: a Mamba 2 mixer beside attention in every layer."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, recurrent, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import DENSE, STATE_SPACE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.recurrent_memory import hybrid


def _derive(hp: HParams) -> HParams:
    return replace(recurrent.with_grouped_ssm(hp), is_recr=(True,) * hp.n_layer_all)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_q, n_ff = hp.n_embd_head_k() * hp.n_head[0], hp.n_ff[0]
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from recurrent.mamba2(hp, layer, conv_bias=False, norm=False)
        yield from blocks.qkv(hp, names, layer, n_q, hp.n_embd_k_gqa(), hp.n_head_kv[0] * hp.n_embd_head_v())
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield may(roles.ATTN_OUT.bias, layer, hp.n_embd)
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_NORM.part(""), layer, hp.n_embd)
        yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
        yield from blocks.gated_ffn(hp, layer, n_ff)
        yield may(roles.FFN_GATE.bias, layer, n_ff)
        yield may(roles.FFN_DOWN.bias, layer, hp.n_embd)
        yield may(roles.FFN_UP.bias, layer, n_ff)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """Every layer attends, and has a state beside it."""
    layers = range(hp.n_layer)
    return hybrid(hp, request, attending=layers, recurring=layers)


ARCHITECTURE = Architecture(
    name="falcon-h1",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(RMS_EPSILON, *recurrent.GROUPED_SSM_KEYS),
    derive=_derive,
    manifest=_manifest,
    memory=_memory,
    rope=RopeType.NEOX,
    size_name=by_layers({24: "1.5B", 32: "3B", 36: "0.5B", 44: "7B", 66: "1B", 72: "34B"}),
    example={**DENSE, **STATE_SPACE, "embedding_length": 64, "ssm.group_count": 2},
)
