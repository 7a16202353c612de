"""The audit: proofs over a finished plan, independent of the stages that made it.

A plan can agree with the reference and still be illegal: what meets in a layer may have been cut at different places.
Each proof is about a seam, states what must be equal there and shows the numbers. A proof that holds is one entry for
the whole plan; one that fails is an entry per seam it fails at, so that nothing is hidden behind the first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from app.architectures.understanding import Understanding
from app.planner.lockstep import seam_proofs
from app.planner.plan import PlannedTensor, SplitPlan, extent_along
from app.planner.seams import Fault, Numbers, PlannedLayers, SeamProof

MAX_FAULTS: Final = 64  # per proof: beyond that a plan is not more wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One entry of the audit. `checked` counts what the proof looked at; `seam` names where it holds or fails."""

    proof: str
    seam: str
    holds: bool
    detail: str
    checked: int
    tensor: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The entry as a plan shows it."""
        return {
            "proof": self.proof,
            "seam": self.seam,
            "holds": self.holds,
            "detail": self.detail,
            "checked": self.checked,
            "tensor": self.tensor,
        }


def audit(plan: SplitPlan, understanding: Understanding) -> tuple[Proof, ...]:
    """Every proof about `plan`, in a fixed order. Decides nothing: see `first_failure`."""
    layers = PlannedLayers(plan, understanding)
    proofs: list[SeamProof] = [
        SeamProof("conservation", "every element of every tensor", _conservation),
        SeamProof("placement", "every tensor of the file", _placement),
        SeamProof("block_alignment", "every cut along the contiguous axis", _block_alignment),
        *seam_proofs(),
        SeamProof("memory_sums", "every device", _memory_sums),
    ]
    return tuple(entry for proof in proofs for entry in _entries(proof, layers))


def first_failure(proofs: Sequence[Proof]) -> Proof | None:
    """The first proof that fails, or None: the plan is legal."""
    return next((proof for proof in proofs if not proof.holds), None)


def _entries(proof: SeamProof, layers: PlannedLayers) -> Iterator[Proof]:
    checked = 0
    sample: Numbers | None = None
    faults: list[Fault] = []
    for outcome in proof.check(layers):
        checked += 1
        if isinstance(outcome, Fault):
            faults.append(outcome)
        else:
            sample = sample or outcome
    for fault in faults[:MAX_FAULTS]:
        yield Proof(
            proof=proof.name, seam=fault.seam, holds=False, detail=fault.detail, checked=checked, tensor=fault.tensor
        )
    if not faults:
        detail = sample.show() if sample is not None else "nothing of the kind is in this plan"
        yield Proof(proof=proof.name, seam=proof.seam, holds=True, detail=detail, checked=checked)


_AGAIN: Final = Numbers(lambda: "as before")
Outcomes = Iterator[Fault | Numbers]


def _shape_axis(tensor: PlannedTensor) -> int | None:
    return tensor.axis if isinstance(tensor.axis, int) else None


def _conservation(layers: PlannedLayers) -> Outcomes:
    """Shares add up to the axis, bytes to the tensor; what is whole or mirrored is whole everywhere it is."""
    # layers repeat: what was found right once is right again
    right: set[object] = set()
    for tensor in layers.all:
        axis = _shape_axis(tensor)
        if axis is None:
            yield _whole_bytes(tensor)
            continue
        question = (tensor.shape, tensor.nbytes, axis, tensor.segments, tensor.bytes_per_device)
        if question in right:
            yield _AGAIN
            continue
        extent = extent_along(tensor.shape, axis)
        shares = layers.shares(tensor)
        if sum(shares) != extent or min(shares) < 0:
            yield Fault(tensor.name, f"shares {_list(shares)} make {sum(shares)}, the axis has {extent}", tensor.name)
        elif sum(tensor.bytes_per_device) != tensor.nbytes:
            yield Fault(
                tensor.name,
                f"slices of {_list(tensor.bytes_per_device)} bytes make {sum(tensor.bytes_per_device)}, "
                f"the tensor has {tensor.nbytes}",
                tensor.name,
            )
        elif any(nbytes * extent != tensor.nbytes * share for nbytes, share in _pairs(tensor, shares)):
            yield Fault(
                tensor.name,
                f"slices of {_list(tensor.bytes_per_device)} bytes are not what shares {_list(shares)} weigh",
                tensor.name,
            )
        else:
            right.add(question)
            yield Numbers(partial("{}: {} make {}".format, tensor.name, _list(shares), extent))


def _pairs(tensor: PlannedTensor, shares: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(tensor.bytes_per_device, shares, strict=True)


def _whole_bytes(tensor: PlannedTensor) -> Fault | Numbers:
    if tensor.device is None:
        if any(nbytes != tensor.nbytes for nbytes in tensor.bytes_per_device):
            detail = f"{tensor.axis} on all devices with {_list(tensor.bytes_per_device)} bytes, not {tensor.nbytes}"
            return Fault(tensor.name, detail, tensor.name)
    elif sum(tensor.bytes_per_device) not in (0, tensor.nbytes):
        detail = f"whole on {tensor.device} with {_list(tensor.bytes_per_device)} bytes, not {tensor.nbytes}"
        return Fault(tensor.name, detail, tensor.name)
    return Numbers(partial("{}: {} bytes".format, tensor.name, tensor.nbytes))


def _placement(layers: PlannedLayers) -> Outcomes:
    """Every tensor the model uses is somewhere, and nowhere twice."""
    places: dict[str, list[str | None]] = {}
    for tensor in layers.plan.tensors:
        places.setdefault(tensor.name, []).append(tensor.device)
    for match in layers.understanding.comparison.matches:
        name = match.tensor.name
        if match.tensor in layers.unused:
            continue
        found = places.get(name, [])
        if not found:
            yield Fault(name, "the model uses it and the plan has no place for it", name)
        elif len(set(found)) != len(found):
            shown = ", ".join(place or "all devices" for place in found)
            yield Fault(name, f"placed twice in one place: {shown}", name)
        else:
            yield Numbers(partial("{}: in {} place(s)".format, name, len(found)))


def _block_alignment(layers: PlannedLayers) -> Outcomes:
    """No quant block is torn: it lies along the contiguous axis."""
    for tensor in layers.all:
        if tensor.axis != 0:
            continue
        block = tensor.type.block_size
        torn = [extent for part in tensor.segments for extent in part.extents if extent % block]
        if torn:
            yield Fault(
                tensor.name,
                f"a share of {torn[0]} elements tears a {tensor.type.name} block of {block}",
                tensor.name,
            )
        else:
            yield Numbers(
                partial("{}: shares {} are whole blocks of {}".format, tensor.name, layers.shares(tensor), block)
            )


def _memory_sums(layers: PlannedLayers) -> Outcomes:
    """What the totals say is what the entries weigh."""
    names = [device.name for device in layers.plan.devices]
    sums = {total.name: [0, 0] for total in layers.plan.totals}
    for kind, tensors in enumerate((layers.plan.tensors, layers.plan.caches)):
        for tensor in tensors:
            if tensor.device is not None and tensor.device not in names:
                sums.setdefault(tensor.device, [0, 0])[kind] += tensor.nbytes
            for name, nbytes in zip(names, tensor.bytes_per_device, strict=True):
                sums.setdefault(name, [0, 0])[kind] += nbytes
    said = {total.name: [total.weights_bytes, total.cache_bytes] for total in layers.plan.totals}
    for name, found in sums.items():
        if said.get(name, [0, 0]) != found:
            yield Fault(
                f"device {name}",
                f"the plan says {_list(said.get(name, [0, 0]))} bytes of weights and caches, its entries make "
                f"{_list(found)}",
            )
        else:
            yield Numbers(partial("{}: {} bytes of weights, {} of caches".format, name, *found))


def _list(numbers: Sequence[int]) -> str:
    return "/".join(map(str, numbers))
