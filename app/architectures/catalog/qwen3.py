"""Qwen 3: normed Q and K with a head size of their own; an output head for reranking where the file has one."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers_and_width
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


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
    size_name=by_layers_and_width({(28, 1024): "0.6B", (36, 2560): "4B"}, {28: "1.7B", 36: "8B", 40: "14B", 64: "32B"}),
    example={**DENSE, "attention.key_length": 64, "attention.value_length": 64},
)
