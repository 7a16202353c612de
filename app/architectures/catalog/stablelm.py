"""StableLM: norms that scale and shift; the 12B norms each head of Q and K and runs its two halves side by side."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import LAYER_NORMED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM.bias, None, hp.n_embd)
    yield from blocks.untied_output(hp)
    n_q, n_k, n_v = blocks.model_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.layer_norm(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield may(roles.ATTN_Q_NORM, layer, hp.n_embd_head_k(), hp.n_head[0])
        yield may(roles.ATTN_K_NORM, layer, hp.n_embd_head_k(), hp.n_head_kv[0])
        yield from blocks.layer_norm(roles.FFN_NORM, layer, hp.n_embd, required=False)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="stablelm",
    hparams=(NORM_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({24: "1B", 32: "3B", 40: "12B"}),
    example={**LAYER_NORMED},
)
