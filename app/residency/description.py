"""What a GGUF file is: facts, what is missing, wrong, extra and unused, and why it cannot be loaded, if it cannot.

One home for what `inspect` and the routes of files show; their own part is the form of the problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from app.architectures.common import key_problems
from app.architectures.manifest import Comparison, Expected
from app.architectures.registry import Catalog
from app.architectures.understanding import Understanding, understand
from app.errors import FileError, GgufdError, MetadataError
from app.modelfile.limits import ReadLimits
from app.modelfile.opening import open_regular
from app.modelfile.reader import read_array, read_model_file
from app.modelfile.text import brief, shown
from app.modelfile.types import ModelFile, TensorInfo
from app.modelfile.vocabulary import duplicate_tokens
from app.residency.keys import SHORT_TEXT, finite, metadata_json
from app.units import KIB

MOST_LISTED: Final = 1000
"""How many names each list of disagreements has at most; `counts` has all of them."""
_FIRST_ELEMENTS: Final = 8
_ARRAYS_BEGUN: Final = 64  # long arrays whose first elements are shown; each is looked up in the file
_NOT_A_FILE: Final = ("is_directory", "not_regular_file")


@dataclass(frozen=True, kw_only=True)
class Description:
    """One file, or set of files, looked at. `model` is None where its header cannot be read.

    `problem` is what a load would be refused for. `keys` are the problems of the metadata's keys one by one.
    """

    path: Path
    size_bytes: int | None
    model: ModelFile | None = None
    understanding: Understanding | None = None
    comparison: Comparison | None = None
    problem: GgufdError | None = None
    keys: tuple[MetadataError, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def architecture(self) -> str | None:
        """What the file calls its architecture, known or not."""
        entry = self.model.metadata.get("general.architecture") if self.model is not None else None
        return brief(entry.value.strip()) if entry is not None and isinstance(entry.value, str) else None

    @cached_property
    def quantisation(self) -> dict[str, Any] | None:
        """The type that most bytes have, the mean bits per weight, and tensors and bytes of every type."""
        if self.model is None or not self.model.tensors:
            return None
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for tensor in self.model.tensors:
            counts[tensor.type.name] += 1
            sizes[tensor.type.name] += tensor.nbytes
        n_params = self.model.n_params
        return {
            "main": sizes.most_common(1)[0][0],
            "bits_per_weight": round(8 * self.model.n_bytes / n_params, 3) if n_params else None,
            "types": [{"type": name, "tensors": counts[name], "bytes": size} for name, size in sizes.most_common()],
        }

    def summary(self) -> dict[str, Any]:
        """The facts of a line in a listing, as JSON; without the path and the problem."""
        model, understanding = self.model, self.understanding
        return {
            "size_bytes": self.size_bytes,
            "architecture": self.architecture,
            "type": understanding.architecture.size_name(understanding.hparams) if understanding is not None else None,
            "n_params": model.n_params if model is not None else None,
            "n_bytes": model.n_bytes if model is not None else None,
            "n_tensors": len(model.tensors) if model is not None else None,
            "quantisation": self.quantisation,
            "loadable": self.problem is None,
        }

    def details(self) -> dict[str, Any]:
        """Everything but the problem and the tensors, as JSON. Members that cannot be known are null.

        Raises FileError `file_changed` if the file is no longer the one that was read.
        """
        model, comparison = self.model, self.comparison
        lists: dict[str, list[dict[str, Any]]] = {"missing": [], "wrong": [], "extra": [], "unused": []}
        if comparison is not None:
            lists = {
                "missing": [{**_expected(expected), **_alternative(expected)} for expected in comparison.missing],
                "wrong": [{**_expected(match.expected), "found": [*match.tensor.shape]} for match in comparison.wrong],
                "extra": [_found(tensor) for tensor in comparison.extra],
                "unused": [_found(tensor) for tensor in comparison.unused],
            }
        return {
            "files": [shown(shard.path) for shard in model.shards] if model is not None else [shown(self.path)],
            "version": model.version if model is not None else None,
            "alignment": model.alignment if model is not None else None,
            **self.summary(),
            "model": self.understanding.facts() if self.understanding is not None else None,
            "warnings": list(self.warnings),
            "keys": [{"code": error.code, "detail": error.message, **error.facts} for error in self.keys],
            "counts": {name: len(found) if comparison is not None else None for name, found in lists.items()},
            **{name: found[:MOST_LISTED] if comparison is not None else None for name, found in lists.items()},
            "metadata": _metadata(model) if model is not None else None,
        }

    def tensors(self, name: str = "", kind: str | None = None) -> list[TensorInfo]:
        """The file's tensors, in its order, whose name has `name` in it and whose type is `kind` (None: any)."""
        found = self.model.tensors if self.model is not None else ()
        return [tensor for tensor in found if name in tensor.name and kind in (None, tensor.type.name)]

    def tensors_json(self, tensors: Sequence[TensorInfo]) -> list[dict[str, Any]]:
        """Tensors of the file as JSON: where they lie in which of the files, and what they are for, if it is known."""
        return [
            {
                "name": tensor.name,
                "type": tensor.type.name,
                "shape": [*tensor.shape],
                "bytes": tensor.nbytes,
                "role": role,
                "layer": layer,
                "file": tensor.shard,
                "offset": tensor.offset,
            }
            for tensor in tensors
            for role, layer in (self._uses.get(tensor.name, (None, None)),)
        ]

    @cached_property
    def _uses(self) -> dict[str, tuple[str, int | None]]:
        """Role and layer of every tensor that is expected, by name; of several uses the first."""
        uses: dict[str, tuple[str, int | None]] = {}
        if self.comparison is not None:
            for match in (*self.comparison.matches, *self.comparison.wrong):
                uses.setdefault(match.tensor.name, (match.expected.role.label, match.expected.layer))
        return uses


def describe(
    path: Path,
    catalog: Catalog,
    limits: ReadLimits,
    roots: Sequence[Path] | None = None,
    *,
    token_bytes: int | None = None,
) -> Description:
    """Look at the model at `path`; whatever is wrong with its content becomes part of the description.

    Vocabularies of up to `token_bytes` (None: any) are searched for equal tokens. Raises NotFoundError, AccessError,
    and FileError where there is no file to describe (`is_directory`, `not_regular_file`), or it changes meanwhile.
    """
    try:
        model = read_model_file(path, limits, roots)
    except FileError as error:
        if error.code in _NOT_A_FILE:
            raise
        return Description(path=path, size_bytes=_size(path, roots), problem=error)
    understanding, comparison, problem = None, None, None
    keys: tuple[MetadataError, ...] = ()
    warnings = model.warnings
    try:
        understanding = understand(model, catalog)
        warnings = understanding.warnings
        comparison = understanding.comparison
        understanding.require_tensors()
    except MetadataError as error:
        problem = error
        keys = _key_problems(model, catalog)
    return Description(
        path=path,
        size_bytes=sum(shard.identity.size for shard in model.shards),
        model=model,
        understanding=understanding,
        comparison=comparison,
        problem=problem,
        keys=keys,
        warnings=(*warnings, *duplicate_tokens(model, token_bytes)),
    )


def _key_problems(model: ModelFile, catalog: Catalog) -> tuple[MetadataError, ...]:
    entry = model.metadata.get("general.architecture")
    name = str(entry.value).strip() if entry is not None else ""
    if name not in catalog or catalog.get(name).refused is not None:
        return ()
    return key_problems(name, model.metadata, catalog.get(name).hparams)


def _size(path: Path, roots: Sequence[Path] | None) -> int | None:
    """Bytes of the one file at `path`; None for a folder and for what cannot be opened any more."""
    try:
        with open_regular(path, roots) as file:
            return file.identity.size
    except GgufdError:
        return None


def _metadata(model: ModelFile) -> list[dict[str, Any]]:
    """Every key; of a long array its first elements."""
    entries = metadata_json(model)
    long = [entry for entry in entries if entry["type"] == "array" and not entry["complete"]]
    for entry in long[:_ARRAYS_BEGUN]:
        first = read_array(model, entry["key"], stop=_FIRST_ELEMENTS, most_bytes=KIB)
        entry["value"] = [value[:SHORT_TEXT] if isinstance(value, str) else finite(value) for value in first]
        cut = any(isinstance(value, str) and len(value) > SHORT_TEXT for value in first)
        entry["complete"] = len(first) == entry["count"] and not cut
    return entries


def _expected(expected: Expected) -> dict[str, Any]:
    return {
        "name": expected.name,
        "role": expected.role.label,
        "layer": expected.layer,
        "expected": [*expected.shape],
    }


def _alternative(expected: Expected) -> dict[str, Any]:
    """A fused tensor that would do instead."""
    return {"alternative": expected.fused.tensor_name(expected.layer)} if expected.fused is not None else {}


def _found(tensor: TensorInfo) -> dict[str, Any]:
    return {"name": tensor.name, "type": tensor.type.name, "shape": [*tensor.shape], "bytes": tensor.nbytes}
