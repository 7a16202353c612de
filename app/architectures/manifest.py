"""Manifests: which tensors a model of an architecture has, and how a file's tensors are held against them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.architectures.roles import Op, Role
from app.errors import MetadataError
from app.modelfile.types import TensorInfo

Names = Mapping[str, TensorInfo]


class Expected(NamedTuple):
    """One tensor an architecture may have. `shape` is in GGUF order, trailing ones may be left out.

    `copy`: a further use of a tensor that is already expected, placed again where that use is on another device (tied
    output, rotary tables of later layers). `unused`: known, but never loaded. `reshaped`: only the number of elements
    must agree. `fused`: a role that may stand in its place.

    (A named tuple, where other values are frozen data classes: a plan makes thousands, and a tuple costs a third.)
    """

    role: Role
    layer: int | None
    shape: tuple[int, ...]
    required: bool = True
    copy: bool = False
    unused: bool = False
    reshaped: bool = False
    fused: Role | None = None

    @property
    def name(self) -> str:
        """The tensor's name in the file."""
        return self.role.tensor_name(self.layer)


class Match(NamedTuple):
    """A file's tensor and what it is expected for."""

    tensor: TensorInfo
    expected: Expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A file held against a manifest. `missing` and `wrong` are in manifest order, `extra` in file order.

    `file` is its path, as errors show it.
    """

    file: str
    matches: tuple[Match, ...]
    missing: tuple[Expected, ...]
    wrong: tuple[Match, ...]
    extra: tuple[TensorInfo, ...]
    first_problem: Expected | None

    @property
    def unused(self) -> tuple[TensorInfo, ...]:
        """Tensors that are known and never loaded."""
        return tuple(match.tensor for match in self.matches if is_unused(match.expected))

    def require(self) -> None:
        """Raise the first disagreement as MetadataError: missing_tensor, wrong_shape or unexpected_tensor.

        Disagreements count in the manifest's order, as the reference meets them; extra tensors come last.
        """
        first = self.first_problem
        if first is not None and self.missing and self.missing[0] is first:
            fused = first.fused.tensor_name(first.layer) if first.fused is not None else None
            raise MetadataError(
                f"{self.file}: tensor {first.name} is missing, expected with shape {list(first.shape)}"
                + (f" (or {fused} in its place)" if fused else ""),
                code="missing_tensor",
                file=self.file,
                tensor=first.name,
                alternative=fused,
                expected=[*first.shape],
                found=None,
            )
        if first is not None:
            found = self.wrong[0].tensor
            raise MetadataError(
                f"{self.file}: tensor {first.name} has shape {list(found.shape)}, "
                f"expected {list(first.shape)} from the metadata",
                code="wrong_shape",
                file=self.file,
                tensor=first.name,
                expected=[*first.shape],
                found=[*found.shape],
            )
        if self.extra:
            names = [tensor.name for tensor in self.extra]
            raise MetadataError(
                f"{self.file}: the file has {len(names)} tensor{'s' if len(names) > 1 else ''} "
                "the architecture does not know: " + ", ".join(names[:5]) + (", …" if len(names) > 5 else ""),
                code="unexpected_tensor",
                file=self.file,
                tensor=names[0],
                unexpected=[*names[:20]],
                expected=len(self.matches),
                found=len(self.matches) + len(names),
            )


def is_unused(expected: Expected) -> bool:
    """Whether a tensor is in the file for nobody: marked so by its manifest, or no operation consumes its role."""
    return expected.unused or expected.role.op is Op.NONE


def compare(tensors: Mapping[str, TensorInfo], manifest: Iterable[Expected], file: str) -> Comparison:
    """Hold the tensors of `file` (by name) against a manifest; decides nothing, raises nothing."""
    matches: list[Match] = []
    missing: list[Expected] = []
    wrong: list[Match] = []
    first_problem: Expected | None = None
    known: set[str] = set()
    for expected in manifest:
        name = expected.name
        tensor = tensors.get(name)
        if tensor is None:
            if expected.required:
                missing.append(expected)
                first_problem = first_problem or expected
            continue
        known.add(name)
        match = Match(tensor=tensor, expected=expected)
        if _same_shape(tensor, expected):
            matches.append(match)
        else:
            wrong.append(match)
            first_problem = first_problem or expected
    extra = tuple(tensor for tensor in tensors.values() if tensor.name not in known)
    return Comparison(
        file=file,
        matches=tuple(matches),
        missing=tuple(missing),
        wrong=tuple(wrong),
        extra=extra,
        first_problem=first_problem,
    )


def _same_shape(tensor: TensorInfo, expected: Expected) -> bool:
    if tensor.shape == expected.shape:
        return True
    if expected.reshaped:
        count = 1
        for extent in expected.shape:
            count *= extent
        # in the expected shape, too, a row must be whole quant blocks
        return tensor.n_elements == count and expected.shape[0] % tensor.type.block_size == 0
    return _padded(tensor.shape) == _padded(expected.shape)


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 1, 1, 1, 1)[:4]
