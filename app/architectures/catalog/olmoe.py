"""OLMoE: Q and K normed over all their heads, every layer with routed experts."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.mixture import require_experts, routed


def _derive(hp: HParams) -> HParams:
    require_experts(hp)
    if hp.n_expert_used[0] == 0:
        raise bad_value(hp.arch, "expert_used_count", 0, "at least 1 in the first layer")
    return hp


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.untied_output(hp)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield from blocks.norms(layer, hp.n_embd, roles.ATTN_Q_NORM, roles.ATTN_K_NORM, roles.FFN_NORM)
        yield from routed(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="olmoe",
    capabilities=Capabilities(tensor_split=False),
    hparams=(RMS_EPSILON,),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({16: "A1.7B"}),
    example={**DENSE, "expert_count": 4, "expert_used_count": 2, "attention.head_count_kv": 4},
)
