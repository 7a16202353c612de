"""Stage 1, classification: what each tensor is for.

A tensor's meaning comes from the manifest alone, never from its name; a tensor used twice is classified twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.architectures.manifest import Comparison, Match, is_unused
from app.architectures.roles import Role
from app.modelfile.types import TensorInfo
from app.planner.plan import Classified, Tensor


def classify(comparison: Comparison) -> tuple[Classified, ...]:
    """The tensors to be placed, in the manifest's order; further uses of one tensor are marked as copies.

    Raises MetadataError (missing_tensor, wrong_shape, unexpected_tensor) if the file is not what its architecture
    expects. Tensors that nothing uses are left out.
    """
    comparison.require()
    return tuple(
        Classified(
            tensor=_as_used(match),
            role=match.expected.role,
            layer=match.expected.layer,
            copy=match.expected.copy,
        )
        for match in comparison.matches
        if not is_unused(match.expected)
    )


def _as_used(match: Match) -> TensorInfo:
    """The tensor in the shape its consumers see, which may differ from the file's: that is the shape that is cut."""
    shape = match.expected.shape
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    if not match.expected.reshaped or match.tensor.shape == shape:
        return match.tensor
    return replace(match.tensor, shape=shape)


@dataclass(frozen=True, slots=True)
class Peers:
    """Who else is in a tensor's layer, by role: a cut is limited by the projection that the slices meet in.

    `kind` is equal for layers with the same roles in the same shapes and types.
    """

    by_role: Mapping[Role, Tensor]
    kind: object = ()

    def first(self, roles: Iterable[Role]) -> Tensor | None:
        """The tensor of the first of `roles` that this layer has."""
        for role in roles:
            tensor = self.by_role.get(role)
            if tensor is not None:
                return tensor
        return None


def peers_by_layer(classified: Sequence[Classified]) -> dict[int | None, Peers]:
    """The peers of every layer; model-level tensors are each other's under None."""
    layers: dict[int | None, dict[Role, Tensor]] = {}
    for item in classified:
        layers.setdefault(item.layer, {}).setdefault(item.role, item.tensor)
    return {layer: Peers(by_role, _kind(by_role)) for layer, by_role in layers.items()}


def _kind(by_role: Mapping[Role, Tensor]) -> object:
    return tuple((role, tensor.type.id, tensor.shape) for role, tensor in by_role.items())
