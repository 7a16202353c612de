"""RWKV 6 in a Qwen2 body: time mixing in place of attention, with fewer key heads, and a gated feed-forward."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.rwkv6 import ARCHITECTURE as RWKV6
from app.architectures.catalog.rwkv6 import decay, time_mix_lora
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _key_width(hp: HParams) -> int:
    heads, head = hp.n_head_kv[0], hp.wkv_head_size
    return hp.n_embd if heads in (0, hp.n_embd // head) else heads * head


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    width, keys, head = hp.n_embd, _key_width(hp), hp.wkv_head_size
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, width)
    yield may(roles.OUTPUT_NORM.bias, None, width)
    yield need(roles.OUTPUT, None, width, hp.n_vocab)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, width)
        yield from time_mix_lora(hp, layer)
        yield need(roles.TIME_MIX_LERP_FUSED, layer, width, 1, 1, 5)
        yield may(roles.TIME_MIX_FIRST, layer, head, width // head)
        yield from decay(hp, layer)
        yield need(roles.TIME_MIX_KEY, layer, width, keys)
        yield need(roles.TIME_MIX_VALUE, layer, width, keys)
        yield need(roles.TIME_MIX_RECEPTANCE, layer, width, width)
        yield need(roles.TIME_MIX_GATE, layer, width, width)
        yield may(roles.TIME_MIX_KEY.bias, layer, keys)
        yield may(roles.TIME_MIX_VALUE.bias, layer, keys)
        yield may(roles.TIME_MIX_RECEPTANCE.bias, layer, width)
        yield need(roles.TIME_MIX_OUTPUT, layer, width, width)
        yield need(roles.FFN_NORM, layer, width)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = replace(RWKV6, name="rwkv6qwen2", manifest=_manifest)
