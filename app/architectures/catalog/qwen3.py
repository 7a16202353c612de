"""Qwen 3: normed Q and K with a head size of their own; an output head for reranking where the file has one."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names

_SIZES = by_layers({40: "14B", 64: "32B"})


def size_name(hp: HParams) -> str:
    """The dense sizes of the third generation."""
    if hp.n_layer == 28:
        return "0.6B" if hp.n_embd == 1024 else "1.7B"
    if hp.n_layer == 36:
        return "4B" if hp.n_embd == 2560 else "8B"
    return _SIZES(hp)


def layers(hp: HParams, names: Names) -> Iterator[Expected]:
    """The reranking head and the trunk."""
    yield may(roles.CLS_OUT, None, hp.n_embd, hp.n_cls_out)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.equal_kv_widths(hp))
        yield from blocks.norms(layer, hp.n_embd_head_k(), roles.ATTN_K_NORM, roles.ATTN_Q_NORM)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    yield from layers(hp, names)


ARCHITECTURE = Architecture(
    name="qwen3",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=size_name,
    example={**LLAMA.example, "attention.key_length": 64, "attention.value_length": 64},
)
