"""`ggufd inspect`: what is in a GGUF file, whether or not it can be loaded."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from app.api import problems
from app.api.encoding import encode
from app.architectures.registry import load_catalog
from app.architectures.understanding import understand
from app.cli.text import plural, printable, table
from app.errors import GgufdError
from app.modelfile.reader import read_array, read_model_file
from app.modelfile.text import shown
from app.modelfile.types import ArrayValue, KeyValue, ModelFile
from app.modelfile.vocabulary import duplicate_tokens
from app.settings import process_settings
from app.units import human_bytes

_SHOWN_ELEMENTS: Final = 8
_SHOWN_CHARACTERS: Final = 72


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and how to print it."""
    parser.add_argument("file", metavar="FILE", help="a GGUF file, any part of a split one, or a folder that holds one")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the file's facts. A file that is no model is shown too, with the reason why it cannot be loaded."""
    model = read_model_file(Path(arguments.file), process_settings().read)
    found = inspection(model)
    if arguments.json:
        sys.stdout.buffer.write(encode(found))
    else:
        print(_as_text(found))
    return 0


def inspection(model: ModelFile) -> dict[str, Any]:
    """Everything about a file, as JSON: facts, metadata (long arrays abbreviated), tensors by type, tensors.

    `problem` says why the file cannot be loaded, and is null if it can; `model` are the facts of the architecture.
    """
    facts: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
    warnings = model.warnings
    try:
        understanding = understand(model, load_catalog())
        warnings = understanding.warnings
        facts = understanding.facts()
        understanding.comparison.require()
    except GgufdError as error:
        problem = problems.problem(error)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in model.tensors:
        counts[tensor.type.name] += 1
        sizes[tensor.type.name] += tensor.nbytes
    return {
        "file": shown(model.path),
        "files": [shown(shard.path) for shard in model.shards],
        "version": model.version,
        "alignment": model.alignment,
        "size_bytes": sum(shard.identity.size for shard in model.shards),
        "weights_bytes": model.n_bytes,
        "n_params": model.n_params,
        "n_tensors": len(model.tensors),
        "loadable": problem is None,
        "problem": problem,
        "model": facts,
        "warnings": [*warnings, *duplicate_tokens(model)],
        "types": [{"type": name, "tensors": counts[name], "bytes": sizes[name]} for name, _ in counts.most_common()],
        "metadata": [_entry(model, entry) for entry in model.metadata.values()],
        "tensors": [
            {
                "name": tensor.name,
                "type": tensor.type.name,
                "shape": [*tensor.shape],
                "bytes": tensor.nbytes,
                "file": tensor.shard,
                "offset": tensor.offset,
            }
            for tensor in model.tensors
        ],
    }


def _entry(model: ModelFile, entry: KeyValue) -> dict[str, Any]:
    """One metadata entry; an array shows its length and its first elements."""
    kind = entry.type.name.lower()
    if not isinstance(entry.value, ArrayValue):
        return {"key": entry.key, "type": kind, "value": _finite(entry.value)}
    array = entry.value
    return {
        "key": entry.key,
        "type": f"{kind}[{array.element_type.name.lower()}]",
        "count": array.count,
        "first": [_finite(element) for element in read_array(model, entry.key, stop=_SHOWN_ELEMENTS)],
    }


def _finite(value: Any) -> Any:
    """JSON has no infinities: such a number is shown as its name."""
    return repr(value) if isinstance(value, float) and not abs(value) < float("inf") else value


def _as_text(found: dict[str, Any]) -> str:
    facts, problem = found["model"], found["problem"]
    what = f"{printable(facts['arch'])} {printable(facts['type'])}" if facts else "not understood"
    lines = [
        printable(found["file"], 400),
        f"  GGUF version {found['version']}, alignment {found['alignment']},"
        f" {human_bytes(found['size_bytes'])} in {plural(len(found['files']), 'file')}",
        f"  {what}: {plural(found['n_tensors'], 'tensor')}, {found['n_params'] / 1e6:,.1f} M parameters,"
        f" {human_bytes(found['weights_bytes'])} of weights",
        "  can be loaded" if problem is None
        else f"  cannot be loaded: {problem['code']}: {printable(problem['detail'], 400)}",
        *(f"  warning: {printable(warning, 400)}" for warning in found["warnings"]),
    ]  # fmt: skip
    if facts:
        lines += ["", "facts", table((name, _fact(value)) for name, value in facts.items())]
    types = [(one["type"], str(one["tensors"]), human_bytes(one["bytes"])) for one in found["types"]]
    if types:
        lines += ["", "tensors by type", table(types, header=("type", "tensors", "bytes"), right=(1, 2))]
    entries = [(printable(entry["key"]), entry["type"], _value(entry)) for entry in found["metadata"]]
    if entries:
        lines += ["", f"metadata ({len(entries)})", table(entries)]
    return "\n".join(lines)


def _fact(value: Any) -> str:
    """A fact; an array of one value for every layer is shown once."""
    if isinstance(value, list) and value:
        same = all(one == value[0] for one in value)
        return f"{value[0]} in all {len(value)} layers" if same else printable(str(value), _SHOWN_CHARACTERS)
    return printable(str(value))


def _value(entry: dict[str, Any]) -> str:
    if "value" in entry:
        return printable(str(entry["value"]), _SHOWN_CHARACTERS)
    first = ", ".join(str(element) for element in entry["first"])
    more = ", …" if entry["count"] > len(entry["first"]) else ""
    return f"{entry['count']}: [{printable(first, _SHOWN_CHARACTERS)}{more}]"
