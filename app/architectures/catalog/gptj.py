"""GPT-J: a name that is reserved in the file format and whose tensors nobody has defined."""

from collections.abc import Iterator

from app.architectures.descriptor import Architecture, Capabilities
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(_hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from ()


ARCHITECTURE = Architecture(
    name="gptj",
    capabilities=Capabilities(tensor_split=False),
    manifest=_manifest,
    rope=RopeType.NONE,
    example={},
    refused="of the architecture 'gptj', whose name is reserved and whose tensors nobody has defined",
    refused_code="unsupported_architecture",
)
