"""Rotation: which device comes first when a layer is cut.

Remainders go to the last device; so that they do not all go to the same one, each layer starts at another device.
Layers of one kind (same recurrent flag, same window flag) take turns among themselves: a mixed model's pattern could
otherwise beat in time with the devices. Weights and caches of a layer rotate together; model-level tensors turn with
the number of trunk layers.
"""

from app.architectures.hparams import HParams
from app.modelfile.types import TensorInfo


class Rotations:
    """The rotation of every layer, and of the model-level tensors."""

    def __init__(self, hparams: HParams, n_devices: int) -> None:
        seen: dict[tuple[bool, bool], int] = {}
        rotations = []
        for kind in zip(hparams.is_recr, hparams.is_swa, strict=True):
            rotations.append(seen.get(kind, 0) % n_devices)
            seen[kind] = seen.get(kind, 0) + 1
        self._layers = tuple(rotations)
        self._model = hparams.n_layer % n_devices

    def of(self, tensor: TensorInfo, layer: int | None) -> int:
        """The index of the device that comes first for `tensor`, which belongs to `layer` (None: to the model)."""
        return self._model if layer is None else self._layers[layer]
