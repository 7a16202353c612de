"""A progress bar on standard error, where a person is looking."""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, TextIO

from app.units import human_seconds

_WIDTH: Final = 32
_CLEAR: Final = "\r\x1b[K"


class ProgressBar:
    """Shows how far a load is; a context manager that leaves no trace. Silent where nobody is looking."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._seen = self._stream.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("")

    def show(self, handle: Mapping[str, Any]) -> None:
        """Draw the state of the handle (its JSON)."""
        self._write(bar(handle))

    def _write(self, line: str) -> None:
        if self._seen:
            self._stream.write(_CLEAR + line)
            self._stream.flush()


def bar(handle: Mapping[str, Any]) -> str:
    """One line: `transferring  [#######.........]  45 %  1.20 s left`."""
    done = round(_WIDTH * handle["progress"])
    left = "" if handle["eta_seconds"] is None else f"  {human_seconds(handle['eta_seconds'])} left"
    return f"{handle['state']:12}  [{'#' * done}{'.' * (_WIDTH - done)}] {100 * handle['progress']:3.0f} %{left}"
