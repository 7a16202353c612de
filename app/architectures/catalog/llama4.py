"""Llama 4: chunked windows on three layers of four, experts with a shared one on every n-th layer."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture
from app.architectures.examples import DENSE, EXPERTS
from app.architectures.hparams import HParam, HParams, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.mixture import EXPERT_FF_REQUIRED, require_experts, routed, shared_expert, with_expert_widths
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window

CHUNK = 8192
_EXPERTS_EVERY = HParam("interleave_moe_layer_step", required=True)


def _size_name(hp: HParams) -> str:
    return {16: "17Bx16E (Scout)", 128: "17Bx128E (Maverick)"}.get(hp.n_expert, UNKNOWN_SIZE)


def _derive(hp: HParams) -> HParams:
    require_experts(hp)
    hp = with_expert_widths(hp)
    if hp.given(SLIDING_WINDOW.key) and hp.u32(SLIDING_WINDOW.key) == 0:
        return hp
    # the length is the family's own, whatever the file says
    return with_window(hp, SwaType.CHUNKED, CHUNK, period=4)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp, step = hp.n_ff_exp[0], hp.u32(_EXPERTS_EVERY.key)
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
        if step and (layer + 1) % step == 0:
            yield from routed(hp, layer, n_ff_exp)
            yield from shared_expert(hp, layer, n_ff_exp)
        else:
            yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="llama4",
    hparams=(
        RMS_EPSILON,
        EXPERT_FF_REQUIRED,
        _EXPERTS_EVERY,
        SLIDING_WINDOW,
        SWA_PATTERN,
        FREQ_BASE_SWA,
    ),
    derive=_derive,
    manifest=_manifest,
    size_name=_size_name,
    example={
        **DENSE,
        **EXPERTS,
        "block_count": 4,
        "feed_forward_length": 512,
        "expert_used_count": 1,
        "interleave_moe_layer_step": 2,
    },
)
