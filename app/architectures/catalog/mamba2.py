"""Mamba 2: a state space per head, in groups that share what selects it."""

from collections.abc import Iterator

from app.architectures import blocks, recurrent, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture, Capabilities
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


def _size_name(hp: HParams) -> str:
    return _SIZES.get((hp.n_layer, hp.n_embd), UNKNOWN_SIZE)


ARCHITECTURE = Architecture(
    name="mamba2",
    capabilities=Capabilities(tensor_split=False, recurrent=True),
    hparams=(*recurrent.GROUPED_SSM_KEYS, RMS_EPSILON),
    derive=recurrent.with_grouped_ssm,
    manifest=_manifest,
    rope=RopeType.NONE,
    size_name=_size_name,
    example={
        "context_length": 128,
        "embedding_length": 64,
        "block_count": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 128,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 4,
        "ssm.group_count": 2,
    },
)
