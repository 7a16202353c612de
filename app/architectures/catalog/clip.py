"""CLIP: a vision or audio projector, which goes beside a model and is none itself."""

from collections.abc import Iterator

from app.architectures.descriptor import Architecture, Capabilities
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(_hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from ()


ARCHITECTURE = Architecture(
    name="clip",
    capabilities=Capabilities(tensor_split=False, decoder=False),
    manifest=_manifest,
    rope=RopeType.NONE,
    example={},
    refused="a multimodal projector (general.architecture is 'clip')",
)
