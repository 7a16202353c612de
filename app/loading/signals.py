"""What a running load tells whoever started it: small frozen values, sent from the load's own threads as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.loading.lifecycle import LoadEvent
from app.loading.negotiation import MappingDecision
from app.loading.prepared import Prepared


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan stands and the load mode is negotiated."""

    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Remapped:
    """The system refused part of the negotiated mode; this is what is left of it."""

    mapping: MappingDecision


@dataclass(frozen=True, slots=True)
class Allocated:
    """`nbytes` accounted bytes of `device` are the load's now."""

    device: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Placed:
    """`nbytes` more are in place on `device`: copied, or (`copied` False) mapped and present, or zero to begin with."""

    device: str
    nbytes: int
    copied: bool = True


@dataclass(frozen=True, slots=True)
class FileRead:
    """`nbytes` were read from a `source` (`file`) in an `io_mode` (`buffered`, `direct`, `mmap`)."""

    source: str
    io_mode: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Freed:
    """`nbytes` accounted bytes of `device` were given back."""

    device: str
    nbytes: int


Signal = LoadEvent | Planned | Remapped | Allocated | Placed | FileRead | Freed
Emit = Callable[[Signal], None]
