"""OLMo: queries as wide as the model, SwiGLU, norms without weights."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import LAYER_NORMED
from app.architectures.hparams import HParam, HParams, Kind
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names, norm=False)
    n_q, n_k, n_v = blocks.model_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="olmo",
    hparams=(NORM_EPSILON, HParam("attention.clamp_kqv", Kind.F32)),
    manifest=_manifest,
    size_name=by_layers({22: "1B", 32: "7B", 80: "70B"}),
    example={**LAYER_NORMED},
)
