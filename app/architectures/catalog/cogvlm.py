"""CogVLM: beside each layer's projections a second set, for the tokens of an image."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import SMALL
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_q, n_ff = hp.n_embd_head_k() * hp.n_head[0], hp.n_ff[0]
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_QKV, layer, hp.n_embd, 3 * n_q)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.VISEXP_ATTN_QKV, layer, hp.n_embd, 3 * n_q)
        yield need(roles.VISEXP_ATTN_OUT, layer, n_q, hp.n_embd)
        yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, n_ff)
        yield need(roles.VISEXP_FFN_GATE, layer, hp.n_embd, n_ff)
        yield need(roles.VISEXP_FFN_DOWN, layer, n_ff, hp.n_embd)
        yield need(roles.VISEXP_FFN_UP, layer, hp.n_embd, n_ff)


ARCHITECTURE = Architecture(
    name="cogvlm",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "13B"}),
    example={**SMALL, "attention.layer_norm_rms_epsilon": 1e-5},
)
