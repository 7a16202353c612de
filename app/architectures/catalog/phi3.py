"""Phi-3 and Phi-4: fused QKV, gate and up fused in one tensor, LongRoPE tables."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import SLIDING_WINDOW


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    n_gqa = hp.n_embd_v_gqa()
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, hp.n_embd, n_gqa, n_gqa, required=False)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, 2 * hp.n_ff[0])
        yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FACTORS_LONG, roles.ROPE_FACTORS_SHORT)


ARCHITECTURE = Architecture(
    name="phi3",
    # the window is read and, as in the reference, not used: published files carry it without a pattern
    hparams=(RMS_EPSILON, SLIDING_WINDOW),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({24: "1B", 32: "3B", 40: "14B"}),
    example={**DENSE},
)
