"""Mamba 2: a state space per head, in groups that share what selects it."""

from collections.abc import Iterator

from app.architectures import blocks, recurrent, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers_and_width
from app.architectures.examples import STATE_SPACE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names

_SIZES = {
    (24, 768): "0.1B",
    (48, 1024): "0.4B",
    (48, 1536): "0.8B",
    (48, 2048): "1.5B",
    (64, 2560): "3B",
    (64, 4096): "7B",
}


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from recurrent.mamba2(hp, layer)


ARCHITECTURE = Architecture(
    name="mamba2",
    capabilities=Capabilities(tensor_split=False, recurrent=True),
    hparams=(*recurrent.GROUPED_SSM_KEYS, RMS_EPSILON),
    derive=recurrent.with_grouped_ssm,
    manifest=_manifest,
    rope=RopeType.NONE,
    size_name=by_layers_and_width(_SIZES),
    example={
        **STATE_SPACE,
        "context_length": 128,
        "embedding_length": 64,
        "block_count": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.group_count": 2,
    },
)
