"""`ggufd inspect`: what a GGUF file is, what is missing, wrong or extra, whether or not it can be loaded."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from app.api.encoding import encode
from app.api.views import file_json
from app.architectures.registry import load_catalog
from app.cli.text import line_width, plural, printable, table, wrapped
from app.cli.wishes import FILE_HELP
from app.modelfile.text import shown
from app.residency.description import describe
from app.settings import process_settings
from app.units import human_bytes

_SHOWN_CHARACTERS: Final = 72
_SHOWN_TENSORS: Final = 20
_FAILED: Final = 1
_SECTIONS: Final = (
    ("missing", "missing tensors"),
    ("wrong", "tensors of a wrong shape"),
    ("extra", "tensors that the architecture does not know"),
    ("unused", "tensors that are never loaded"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and how to print it."""
    parser.add_argument("file", metavar="FILE", help=FILE_HELP)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the file's facts. A file that is no model is shown too, with the reason why it cannot be loaded.

    Where not even the header can be read, that is the command's error; the JSON has it as the file's problem.
    """
    path = Path(arguments.file)
    description = describe(path, load_catalog(), process_settings().read)
    if arguments.json:
        sys.stdout.buffer.write(encode(file_json(description, shown(path))))
    elif description.model is None:
        assert description.problem is not None
        raise description.problem
    else:
        print(_as_text(file_json(description, shown(path))))
    return 0 if description.model is not None else _FAILED


def _as_text(found: dict[str, Any]) -> str:
    facts, problem = found["model"], found["problem"]
    what = printable(found["architecture"] or "of no architecture")
    if facts:
        what += f" {printable(facts['type'])}"
    width = line_width()
    head = [
        f"GGUF version {found['version']}, alignment {found['alignment']},"
        f" {human_bytes(found['size_bytes'])} in {plural(len(found['files']), 'file')}",
        f"{what}: {plural(found['n_tensors'], 'tensor')}, {found['n_params'] / 1e6:,.1f} M parameters,"
        f" {human_bytes(found['n_bytes'])} of weights{_bits(found['quantisation'])}",
        "can be loaded" if problem is None
        else f"cannot be loaded: {problem['code']}: {printable(problem['detail'], 400)}",
        *(f"warning: {printable(warning, 400)}" for warning in found["warnings"]),
    ]  # fmt: skip
    lines = [printable(found["path"], 400), *(wrapped(line, width, indent="  ", hanging="    ") for line in head)]
    lines += _disagreements(found, width)
    if facts:
        lines += ["", "facts", table(((name, _fact(value)) for name, value in facts.items()), width=width)]
    if found["quantisation"]:
        types = [
            (one["type"], str(one["tensors"]), human_bytes(one["bytes"])) for one in found["quantisation"]["types"]
        ]
        lines += ["", "tensors by type", table(types, header=("type", "tensors", "bytes"), right=(1, 2))]
    entries = [(printable(entry["key"]), _kind(entry), _value(entry)) for entry in found["metadata"]]
    if entries:
        lines += ["", f"metadata ({len(entries)})", table(entries, width=width)]
    return "\n".join(lines)


def _bits(quantisation: dict[str, Any] | None) -> str:
    if quantisation is None or quantisation["bits_per_weight"] is None:
        return ""
    return f", mostly {quantisation['main']} ({quantisation['bits_per_weight']:.2f} bits per weight)"


def _disagreements(found: dict[str, Any], width: int) -> list[str]:
    """What is wrong with the keys, and the tensors that are missing, wrong, extra or unused; nothing of what is not."""
    lines: list[str] = []
    told = found["problem"]["detail"] if found["problem"] else ""
    keys = [printable(one["detail"], 400) for one in found["keys"] if not told.endswith(one["detail"])]
    if keys:
        lines += ["", "also wrong in the metadata", *(wrapped(key, width, indent="  ", hanging="    ") for key in keys)]
    for member, title in _SECTIONS:
        listed, count = found[member], found["counts"][member]
        if not count:
            continue
        rows = [(printable(one["name"]), _tensor(one)) for one in listed[:_SHOWN_TENSORS]]
        lines += ["", f"{title} ({count})", table(rows, width=width)]
        if count > len(rows):
            lines.append(f"  and {count - len(rows)} more")
    return lines


def _tensor(one: dict[str, Any]) -> str:
    """A tensor that disagrees: what it is, what was expected of it."""
    found = one.get("found") or one.get("shape")
    words = [] if found is None else [" ".join(filter(None, (one.get("type"), _shape(found))))]
    if "expected" in one:
        words.append(f"expected {_shape(one['expected'])}")
    if one.get("alternative"):
        words.append(f"or {one['alternative']} in its place")
    return ", ".join(words)


def _shape(extents: Iterable[int]) -> str:
    return " × ".join(map(str, extents))


def _fact(value: Any) -> str:
    """A fact; an array of one value for every layer is shown once."""
    if isinstance(value, list) and value:
        same = all(one == value[0] for one in value)
        return f"{value[0]} in all {len(value)} layers" if same else printable(str(value), _SHOWN_CHARACTERS)
    return printable(str(value))


def _kind(entry: dict[str, Any]) -> str:
    return f"array[{entry['element_type']}]" if entry["type"] == "array" else str(entry["type"])


def _value(entry: dict[str, Any]) -> str:
    if entry["type"] != "array":
        return printable(str(entry["value"]), _SHOWN_CHARACTERS)
    first = ", ".join(str(element) for element in entry["value"] or ())
    return f"{entry['count']}: [{printable(first, _SHOWN_CHARACTERS)}{'' if entry['complete'] else ', …'}]"
