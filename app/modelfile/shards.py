"""Sets of files that are one model. Metadata decides what belongs together; names only say where to look."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import FileError, MetadataError, NotFoundError
from app.modelfile.header import Header, read_header
from app.modelfile.limits import ReadLimits
from app.modelfile.opening import list_folder, open_regular, require_present
from app.modelfile.text import brief, shown
from app.modelfile.types import ModelFile, Shard, TensorInfo, ValueType

SPLIT_NO: Final = "split.no"
SPLIT_COUNT: Final = "split.count"
SPLIT_TENSORS: Final = "split.tensors.count"

_NAME: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf\Z", re.ASCII)
_MOST_NAMED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One file of the set: where it was looked for, what it is, what it says."""

    path: Path
    shard: Shard
    header: Header


def read_set(path: Path, limits: ReadLimits, roots: Sequence[Path] | None) -> ModelFile:
    """The whole model that `path` (a file, any shard of a set, a folder) belongs to.

    Raises what `read_model_file` says.
    """
    try:
        part = _read_part(path, limits, roots)
    except FileError as error:
        if error.code != "is_directory":
            raise
        part = _read_part(_only_model(path, roots), limits, roots)
    count = _optional(part, SPLIT_COUNT, ValueType.U16) or 1
    if count <= 1:
        return _model(path, [part], ())
    number = _number(part, SPLIT_NO, ValueType.U16)
    if number >= count:
        raise _mismatch(part, SPLIT_NO, f"below {count}", number)
    if count > limits.n_shards:
        raise FileError(
            f"{shown(part.path)}: metadata '{SPLIT_COUNT}': {count} is over the limit n_shards of {limits.n_shards}",
            code="limit_exceeded",
            file=shown(part.path),
            key=SPLIT_COUNT,
            limit="n_shards",
            expected=limits.n_shards,
            found=count,
        )
    paths = _siblings(part, number, count)
    _require_all(part, paths, roots)
    parts: list[_Part] = []
    n_tensors = 0
    warnings: tuple[str, ...] = ()
    for index, sibling in enumerate(paths):
        current = part if index == number == 0 else _read_part(sibling, limits, roots, index)
        _check_place(current, index, count)
        n_tensors += len(current.header.tensors)
        if n_tensors > limits.n_tensors:
            raise FileError(
                f"{shown(sibling)}: n_tensors: {n_tensors} over all shards is over the limit of {limits.n_tensors}",
                code="limit_exceeded",
                file=shown(sibling),
                limit="n_tensors",
                expected=limits.n_tensors,
                found=n_tensors,
            )
        parts.append(current)
    if number:
        warnings = (
            f"{shown(part.path.name)} is file {number + 1} of {count}; the model was read from "
            f"{shown(paths[0].name)} on",
        )
    due = _number(parts[0], SPLIT_TENSORS, ValueType.I32)
    if due != n_tensors:
        raise _mismatch(parts[0], SPLIT_TENSORS, f"{n_tensors}, the tensors of all {count} files", due)
    return _model(path, parts, warnings)


def place_by_name(name: str) -> tuple[str, int, int] | None:
    """What a file's name says of its place in a set: what comes before, its number from 1, how many there are."""
    match = _NAME.search(name)
    return (name[: match.start()], int(match[1]), int(match[2])) if match is not None else None


def _read_part(path: Path, limits: ReadLimits, roots: Sequence[Path] | None, index: int = 0) -> _Part:
    with open_regular(path, roots) as file:
        header = read_header(file, limits, index)
        shard = Shard(path=file.real, identity=file.identity, data_start=header.data_start)
    return _Part(path=path, shard=shard, header=header)


def _model(path: Path, parts: Sequence[_Part], warnings: tuple[str, ...]) -> ModelFile:
    holders: dict[str, _Part] = {}
    tensors: list[TensorInfo] = []
    for part in parts:
        for tensor in part.header.tensors:
            holder = holders.setdefault(tensor.name, part)
            if holder is not part:
                raise FileError(
                    f"{shown(part.path)}: tensor '{brief(tensor.name)}' is also in {shown(holder.path)}",
                    code="duplicate_tensor",
                    file=shown(part.path),
                    tensor=tensor.name,
                    found=shown(holder.path),
                )
        tensors += part.header.tensors
    first = parts[0].header
    return ModelFile(
        path=path,
        version=first.version,
        alignment=first.alignment,
        metadata=first.metadata,
        tensors=tuple(tensors),
        shards=tuple(part.shard for part in parts),
        warnings=warnings,
    )


def _siblings(part: _Part, number: int, count: int) -> list[Path]:
    """Where the files of the set should lie, in order: beside the given one, with only the number changed.

    The name that was asked for counts first, because caches keep links with good names to files with none; then the
    file's own, because a link may have any name.
    """
    ending = _ending(number, count)
    for candidate in (part.path, part.shard.path):
        if candidate.name.endswith(ending):
            prefix = candidate.name.removesuffix(ending)
            return [candidate.with_name(prefix + _ending(index, count)) for index in range(count)]
    raise FileError(
        f"{shown(part.path)}: it says it is file {number + 1} of {count}, so its name must end in '{ending}'",
        code="split_name",
        file=shown(part.path),
        key=SPLIT_NO,
        expected=ending,
        found=shown(part.path.name),
    )


def _ending(number: int, count: int) -> str:
    return f"-{number + 1:05d}-of-{count:05d}.gguf"


def _require_all(part: _Part, paths: Sequence[Path], roots: Sequence[Path] | None) -> None:
    """Refuse the set unless every file is there, naming the first that are not (one outside the roots is not)."""
    missing = []
    for path in paths:
        try:
            require_present(path, roots)
        except NotFoundError:
            missing.append(shown(path.name))
    if missing:
        named = ", ".join(missing[:_MOST_NAMED]) + (
            f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        )
        raise FileError(
            f"{shown(part.path)}: {len(missing)} of the model's {len(paths)} files are missing: {named}",
            code="split_missing",
            file=shown(part.path),
            missing=list(missing[:_MOST_NAMED]),
            expected=len(paths),
            found=len(paths) - len(missing),
        )


def _check_place(part: _Part, index: int, count: int) -> None:
    number = _number(part, SPLIT_NO, ValueType.U16)
    if number != index:
        raise _mismatch(part, SPLIT_NO, str(index), number)
    own_count = _optional(part, SPLIT_COUNT, ValueType.U16)
    if own_count not in (None, count):
        raise _mismatch(part, SPLIT_COUNT, str(count), own_count)


def _number(part: _Part, key: str, kind: ValueType) -> int:
    value = _optional(part, key, kind)
    if value is None:
        raise MetadataError(
            f"{shown(part.path)}: metadata '{key}': is missing, a split model needs it",
            code="missing_key",
            file=shown(part.path),
            key=key,
        )
    return value


def _optional(part: _Part, key: str, kind: ValueType) -> int | None:
    entry = part.header.metadata.get(key)
    if entry is None:
        return None
    if entry.type is not kind:
        expected, found = kind.name.lower(), entry.type.name.lower()
        raise FileError(
            f"{shown(part.path)}: metadata '{key}': is {found}, expected {expected}",
            code="wrong_key_type",
            file=shown(part.path),
            key=key,
            expected=expected,
            found=found,
        )
    assert isinstance(entry.value, int)
    return entry.value


def _mismatch(part: _Part, key: str, expected: str, found: int | None) -> FileError:
    return FileError(
        f"{shown(part.path)}: metadata '{key}': {found}, expected {expected}",
        code="split_mismatch",
        file=shown(part.path),
        key=key,
        expected=expected,
        found=found,
    )


def _only_model(folder: Path, roots: Sequence[Path] | None) -> Path:
    """The one model a folder holds: its single file, or the first file of its single set."""
    names = sorted(name for name in list_folder(folder, roots) if name.endswith(".gguf"))
    matches = {name: _NAME.search(name) for name in names}
    first = [name for name, match in matches.items() if match is None or int(match[1]) == 1]
    sets = {(name[: match.start()], match[2]) for name, match in matches.items() if match is not None}
    if len(first) == 1:
        return folder / first[0]
    if not first and len(sets) == 1:
        return folder / names[0]
    problem = f"holds {len(first or sets)} models, name one of them" if names else "is a folder without a .gguf file"
    raise FileError(
        f"{shown(folder)}: {problem}",
        code="is_directory",
        file=shown(folder),
        expected="one model",
        found=[shown(name) for name in (first or names)[:_MOST_NAMED]],
    )
