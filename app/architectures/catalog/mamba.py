"""Mamba: a selective state space in every layer, no attention, no feed-forward."""

from collections.abc import Iterator

from app.architectures import blocks, recurrent, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers_and_width
from app.architectures.examples import STATE_SPACE
from app.architectures.hparams import HParam, HParams, Kind, RopeType
from app.architectures.manifest import Expected, Names

_SIZES = {
    (24, 768): "0.1B",
    (48, 1024): "0.4B",
    (48, 1536): "0.8B",
    (48, 2048): "1.5B",
    (64, 2560): "3B",
}


def _derive(hp: HParams) -> HParams:
    hp = recurrent.with_ssm(hp)
    recurrent.require_expansion_of_two(hp)
    return hp


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from recurrent.mamba(hp, layer)


ARCHITECTURE = Architecture(
    name="mamba",
    capabilities=Capabilities(tensor_split=False, recurrent=True),
    hparams=(*recurrent.SSM_KEYS, HParam("ssm.dt_b_c_rms", Kind.BOOL), RMS_EPSILON),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NONE,
    size_name=by_layers_and_width(_SIZES),
    example={
        **STATE_SPACE,
        "context_length": 128,
        "embedding_length": 64,
        "block_count": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    },
)
