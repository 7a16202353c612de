"""HRM-Text: two stacks of gated layers run in cycles, so that many cache slots share the weights of few blocks."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture
from app.architectures.examples import DENSE
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.split import SplitOverrides

_PER_STACK, _HIGH_CYCLES, _LOW_CYCLES = "hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"


def _derive(hp: HParams) -> HParams:
    slots = hp.u32(_PER_STACK) * hp.u32(_HIGH_CYCLES) * (hp.u32(_LOW_CYCLES) + 1)
    if hp.n_layer != slots:
        raise bad_value(hp.arch, "block_count", hp.n_layer, f"{slots}, a slot for each pass through a layer")
    return hp


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_q, n_ff = hp.n_embd_head_k() * hp.n_head[0], hp.n_ff[0]
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names, norm=False)
    yield need(roles.HRM_Z_L_INIT.part(""), 0, hp.n_embd)
    # the low stack, then the high one; later passes use the same blocks again
    for block in range(2 * hp.u32(_PER_STACK)):
        yield from blocks.qkv(hp, names, block, n_q, hp.n_embd_k_gqa(), hp.n_embd_v_gqa())
        yield need(roles.ATTN_GATE, block, hp.n_embd, n_q)
        yield need(roles.ATTN_OUT, block, n_q, hp.n_embd)
        yield from blocks.gated_ffn(hp, block, n_ff)


def _size_name(hp: HParams) -> str:
    return "1B" if hp.n_embd == 1536 else UNKNOWN_SIZE


ARCHITECTURE = Architecture(
    name="hrm_text",
    hparams=(
        RMS_EPSILON,
        HParam("embedding_scale", Kind.F32),
        HParam(_PER_STACK, required=True, minimum=1),
        HParam(_HIGH_CYCLES, required=True, minimum=1),
        HParam(_LOW_CYCLES, required=True, minimum=1),
        HParam("hrm.prefix_lm", Kind.BOOL),
    ),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=_size_name,
    split=SplitOverrides(mirrored="cache slots share blocks, so no cut could suit them all: whole on every device"),
    example={
        **DENSE,
        "embedding_length": 64,
        "block_count": 3,
        "hrm.layers_per_stack": 1,
        "hrm.h_cycles": 1,
        "hrm.l_cycles": 2,
    },
)
