"""SmallThinker: routers before attention, a window of fixed length on three layers of four, the first of them full."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import ROUTED
from app.architectures.hparams import HParams, RopeType, SwaType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window

_WINDOW = 4096


def _derive(hp: HParams) -> HParams:
    hp = mixture.only_experts(hp)
    # the file only says whether there is a window; its length is the family's
    return with_window(hp, SwaType.STANDARD, _WINDOW, period=4, dense_first=True) if hp.u32(SLIDING_WINDOW.key) else hp


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.equal_kv_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.routed(hp, layer, hp.n_ff_exp[0])


ARCHITECTURE = Architecture(
    name="smallthinker",
    hparams=(SLIDING_WINDOW, SWA_PATTERN, FREQ_BASE_SWA, mixture.EXPERT_FF, RMS_EPSILON, mixture.GATING_FUNC),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({32: "4B", 52: "20B"}),
    example={**ROUTED, "attention.sliding_window": 4096},
)
