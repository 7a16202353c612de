"""`ggufd architectures`: the catalog as a table, or as JSON."""

import argparse
import sys
import textwrap
from typing import Any, Final

from app.api.encoding import encode
from app.api.views import catalog_json
from app.architectures.registry import load_catalog
from app.cli.text import line_width, plural, table

_HEADER: Final = ("architecture", "rope", "splits", "what is special")
_SPLIT: Final = "tensor_split"
_TOLD_ELSEWHERE: Final = (_SPLIT, "encoder", "decoder")
_KINDS: Final = {(True, True): "encoder and decoder", (True, False): "encoder alone"}
"""What is said of models that have (an encoder, a decoder); a plain stack of layers counts as a decoder, which says
nothing of what its attention may see, so it is not said."""
_WORDS: Final = {
    "lone_expert_is_dense": "one expert is dense",
    "v_follows_k": "V on the scale of K",
    "q_gate": "gated Q",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to print it."""
    parser.add_argument("--json", action="store_true", help="print the catalog as JSON, as the daemon answers it")


def run(arguments: argparse.Namespace) -> int:
    """Print the catalog, fit to the terminal's width."""
    catalog = load_catalog()
    if arguments.json:
        sys.stdout.buffer.write(encode(catalog_json(catalog)))
        return 0
    print(as_table(catalog_json(catalog)["architectures"], line_width()))
    refused = sum(1 for one in catalog if one.refused)
    print(f"\n{plural(len(catalog), 'architecture')}, {refused} of them refused;")
    print("splits: over several devices by tensor, or by layer only")
    return 0


def as_table(architectures: list[dict[str, Any]], columns: int) -> str:
    """A line for each architecture, and more where its words do not fit into `columns`."""
    rows = [
        (one["name"], one["rope"], "tensor" if one["capabilities"][_SPLIT] else "layer", _what(one))
        if not one["refused"]
        else (one["name"], "-", "-", f"refused: {one['refused']}")
        for one in architectures
    ]
    taken = sum(max(len(row[place]) for row in (*rows, _HEADER)) + 2 for place in range(3)) + 2
    width = columns - taken
    lines: list[tuple[str, str, str, str]] = []
    for name, rope, splits, what in rows:
        first, *rest = textwrap.wrap(what, width) or [""]
        lines += [(name, rope, splits, first), *(("", "", "", more) for more in rest)]
    return table(lines, header=_HEADER)


_UNUSUAL_WITHOUT: Final = ("flash_attention",)  # said where it is missing


def _what(one: dict[str, Any]) -> str:
    """The capabilities in words; of what nearly all can do, only that one cannot."""
    has_parts = one["capabilities"]["encoder"], one["capabilities"]["decoder"]
    words = [_KINDS[has_parts]] if has_parts in _KINDS else []
    for name, has in one["capabilities"].items():
        word = _WORDS.get(name, name.replace("_", " "))
        if name in _UNUSUAL_WITHOUT:
            words += [] if has else [f"no {word}"]
        elif name not in _TOLD_ELSEWHERE and has:
            words.append(word)
    return ", ".join(words)
