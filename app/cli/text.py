"""Text for terminals: tables, wrapped lines, and words from strangers made fit to print."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_MAX_CHARACTERS: Final = 96
_WIDTH: Final = 80  # where nobody looks, and what most who look have
_NARROWEST: Final = 60
_NARROWEST_CELL: Final = 24


def line_width() -> int:
    """How many columns a line may take: the terminal's."""
    return max(_NARROWEST, shutil.get_terminal_size((_WIDTH, 24)).columns)


def printable(text: str, limit: int = _MAX_CHARACTERS) -> str:
    """`text` on one line without anything that could steer a terminal, cut to `limit` characters."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def wrapped(text: str, width: int, *, indent: str = "", hanging: str | None = None) -> str:
    """`text` in lines of at most `width` columns (a longer word has one of its own), the later ones after `hanging`."""
    return "\n".join(_lines(text, width, indent, indent if hanging is None else hanging))


def table(
    rows: Iterable[Sequence[str]],
    *,
    header: Sequence[str] = (),
    right: Iterable[int] = (),
    indent: str = "  ",
    width: int | None = None,
) -> str:
    """Columns as wide as their widest cell, two spaces apart; the columns in `right` are aligned to the right.

    With a `width` the cells of the last column are wrapped to stay within it.
    """
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not lines:
        return ""
    *widths, _ = (max(len(line[column]) for line in lines) for column in range(len(lines[0])))
    if width is not None:
        room = max(width - len(indent) - sum(widths) - 2 * len(widths), _NARROWEST_CELL)
        lines = [part for line in lines for part in _wrapped_row(line, room)]
    widths.append(max(len(line[-1]) for line in lines))
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


def _wrapped_row(row: Sequence[str], room: int) -> Iterator[list[str]]:
    first, *more = _lines(row[-1], room, "", "") or [""]
    yield [*row[:-1], first]
    for line in more:
        yield [*[""] * (len(row) - 1), line]


def _lines(text: str, width: int, indent: str, hanging: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
