"""ARWKV 7: RWKV 7 in place of attention in a Qwen2 body, with or without its gate."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.rwkv7 import ARCHITECTURE as RWKV7
from app.architectures.catalog.rwkv7 import low_rank_parts, mixing
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _lerps(hp: HParams, names: Names, layer: int) -> Expected:
    """Six mixing vectors, or five where the model has no gate."""
    ungated = (hp.n_embd, 1, 1, 5)
    found = names.get(roles.TIME_MIX_LERP_FUSED.tensor_name(layer))
    return need(roles.TIME_MIX_LERP_FUSED, layer, *(ungated if found and found.shape == ungated else (*ungated[:3], 6)))


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    width, gate = hp.n_embd, hp.u32("attention.gate_lora_rank")
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, width)
        yield from low_rank_parts(hp, layer)
        yield may(roles.TIME_MIX_G1, layer, width, gate)
        yield may(roles.TIME_MIX_G2, layer, gate, width)
        yield _lerps(hp, names, layer)
        yield from mixing(hp, layer)
        yield from blocks.layer_norm(roles.TIME_MIX_LN, layer, width, required=False)
        yield need(roles.TIME_MIX_OUTPUT, layer, width, width)
        yield need(roles.FFN_NORM, layer, width)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = replace(RWKV7, name="arwkv7", manifest=_manifest)
