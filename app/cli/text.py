"""Text for terminals: tables, and words from strangers made fit to print."""

from collections.abc import Iterable, Sequence
from typing import Final

_MAX_CHARACTERS: Final = 96


def printable(text: str, limit: int = _MAX_CHARACTERS) -> str:
    """`text` on one line without anything that could steer a terminal, cut to `limit` characters."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def table(
    rows: Iterable[Sequence[str]], *, header: Sequence[str] = (), right: Iterable[int] = (), indent: str = "  "
) -> str:
    """Columns as wide as their widest cell, two spaces apart; the columns in `right` are aligned to the right."""
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    aligned_right = frozenset(right)
    return "\n".join(
        (
            indent
            + "  ".join(
                cell.rjust(width) if column in aligned_right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
        ).rstrip()
        for line in lines
    )


def plural(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
