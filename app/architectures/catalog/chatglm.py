"""ChatGLM and GLM-4: gate and up fused in one tensor, an output projection as wide as the model."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _size_name(hp: HParams) -> str:
    if hp.n_layer == 28:
        return "1.5B" if hp.n_head[0] == 16 else "6B"
    if hp.n_layer == 40:
        return "4B" if hp.n_head[0] == 24 else "9B"
    return UNKNOWN_SIZE


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, *blocks.head_widths(hp))
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, 2 * hp.n_ff[0])
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)


ARCHITECTURE = Architecture(
    name="chatglm",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    size_name=_size_name,
    example=DENSE,
)
