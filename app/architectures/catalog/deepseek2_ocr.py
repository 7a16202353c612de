"""DeepSeek OCR: DeepSeek V2's experts behind plain multi-head attention."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.catalog.deepseek2 import ROUTED_KEYS, routed
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import EXPERTS_AFTER_DENSE, SMALL
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    width = hp.n_embd
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.qkv(hp, names, layer, width, width, width)
        yield need(roles.ATTN_OUT, layer, width, width)
        yield need(roles.FFN_NORM, layer, width)
        yield need(roles.ATTN_NORM, layer, width)
        if layer < hp.u32(mixture.LEADING_DENSE.key):
            yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        else:
            yield from routed(hp, names, layer)


ARCHITECTURE = Architecture(
    name="deepseek2-ocr",
    hparams=(RMS_EPSILON, *ROUTED_KEYS, mixture.GATING_FUNC),
    derive=mixture.experts_after_dense,
    manifest=_manifest,
    size_name=by_layers({12: "3B"}),
    example={**SMALL, **EXPERTS_AFTER_DENSE, "attention.layer_norm_rms_epsilon": 1e-6},
)
