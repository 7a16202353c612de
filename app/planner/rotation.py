"""Rotation: which device comes first when a layer is cut.

Remainders go to the last device; so that they do not all go to the same one, each layer starts at another device.
Layers of one kind (same recurrent flag, same window flag) take turns among themselves: a mixed model's pattern could
otherwise beat in time with the devices. Weights and caches of a layer rotate together; model-level tensors turn with
the number of trunk layers.
"""

from app.architectures.hparams import HParams


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

    def of(self, layer: int | None) -> int:
        """The index of the device that comes first for the tensors of `layer` (None: of the model)."""
        return self._model if layer is None else self._layers[layer]


class LayerKinds:
    """Which layers are alike for everything the stages look at: heads, widths, window, recurrence."""

    def __init__(self, hparams: HParams) -> None:
        facts = zip(
            hparams.n_head,
            hparams.n_head_kv,
            hparams.n_ff,
            hparams.n_ff_exp,
            hparams.is_swa,
            hparams.is_recr,
            strict=True,
        )
        numbers: dict[tuple[int, ...], int] = {}
        self._kinds = tuple(numbers.setdefault(kind, len(numbers)) for kind in facts)

    def of(self, layer: int | None) -> int:
        """Equal for layers that are cut alike; model-level tensors ask the first layer."""
        return self._kinds[layer or 0]
