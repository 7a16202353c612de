"""OLMo 2 and 3: norms after attention and feed-forward, Q and K normed over all their heads; OLMo 3 has windows."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, optional_window


def _derive(hp: HParams) -> HParams:
    if hp.n_head[0] == 0:
        raise bad_value(hp.arch, "attention.head_count", 0, "at least 1")
    return optional_window(hp, period=4)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    n_q, n_k, n_v = blocks.model_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.ATTN_Q_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_K_NORM, layer, hp.n_head_kv[0] * (hp.n_embd // hp.n_head[0]))
        yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)
        yield need(roles.FFN_GATE, layer, hp.n_embd, hp.n_ff[0])
        yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_POST_NORM, layer, hp.n_embd)


ARCHITECTURE = Architecture(
    name="olmo2",
    capabilities=Capabilities(tensor_split=False),
    hparams=(RMS_EPSILON, SLIDING_WINDOW, SWA_PATTERN, FREQ_BASE_SWA),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({16: "1B", 32: "7B", 40: "13B", 64: "32B"}),
    example={**DENSE, "block_count": 4, "attention.sliding_window": 32},
)
