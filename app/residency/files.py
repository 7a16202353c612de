"""The files under the roots, as a client sees them: found, described, and how warm they are.

Descriptions are kept by the files' identities, so that a listing that is asked for again reads no header twice.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.errors import GgufdError, NotFoundError
from app.loading.run import World, locate
from app.modelfile.finding import Findings, FoundModel, WalkLimits, find_models
from app.modelfile.opening import not_found, open_regular
from app.modelfile.text import shown
from app.modelfile.types import FileIdentity
from app.modelfile.warmth import Warmth, joined, warmth
from app.residency.description import Description, describe
from app.residency.keeper import internal_error, log_fault
from app.units import MIB

_SECONDS: Final = 0.7  # for one page, the walk included
_KEPT: Final = 4096
_TOKEN_BYTES: Final = MIB  # vocabularies that are searched for equal tokens
_LOOKED_AT: Final = 32 * MIB  # of the page cache, per model
_PASSING: Final = ("split_missing", "split_mismatch", "split_name", "read_failed", "file_changed")
"""Problems that may go away without the file itself changing."""

_State = tuple[tuple[str, FileIdentity], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One line of a listing: the path by which a load finds the model, and the facts as JSON.

    Not `nameable`: JSON cannot carry the path, which is escaped here.
    """

    path: str
    nameable: bool
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    """A page of a listing that ends before `stop`, of `count` models in all.

    `limits_met` names the bounds of the walk (WalkLimits) that left something out; empty: everything was found.
    """

    entries: list[FileEntry]
    count: int
    stop: int
    limits_met: tuple[str, ...]
    unreadable: int


class ModelFiles:
    """Looks at the files under the roots of `world`. Thread-safe. `clock` gives monotonic seconds."""

    def __init__(
        self, world: World, limits: WalkLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._world = world
        self._limits = limits or WalkLimits()
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[Path, tuple[_State, dict[str, Any]]] = OrderedDict()

    def page(self, offset: int, limit: int) -> FilePage:
        """The files `[offset, offset + limit)`, or fewer where looking at them takes longer than a moment.

        At least one file is looked at, so every page gets on.
        """
        deadline = self._clock() + _SECONDS
        findings = self._find()
        models = findings.models
        entries: list[FileEntry] = []
        stop = min(offset + limit, len(models))
        for place in range(offset, stop):
            if place > offset and self._clock() > deadline:
                stop = place
                break
            entry = self._entry(models[place])
            if entry is not None:
                entries.append(entry)
        return FilePage(
            entries=entries,
            count=len(models),
            stop=stop,
            limits_met=findings.limits_met,
            unreadable=findings.unreadable,
        )

    def describe(self, model: str) -> tuple[Description, Warmth]:
        """One file, set or folder, as a load would name it, and how warm it is.

        Raises NotFoundError `model_not_found` (missing, or outside the roots), AccessError, FileError.
        """
        world = self._world
        try:
            path = locate(model, world.roots)
            description = describe(path, world.catalog, world.limits, world.roots, token_bytes=_TOKEN_BYTES)
            found = description.model
            _, heat = self._look([shard.path for shard in found.shards] if found is not None else [path])
        except NotFoundError:
            raise not_found(Path(model), world.roots) from None
        return description, heat

    def _find(self) -> Findings:
        return find_models(self._world.roots or (), self._limits, self._clock)

    def _entry(self, found: FoundModel) -> FileEntry | None:
        """One line of the listing; None for a file that is gone, or turns out to lie elsewhere."""
        name, nameable = self._name(found)
        facts: dict[str, Any] = {"files": len(found.names)}
        try:
            state, heat = self._look(found.paths)
            facts |= {**self._facts(found, state), "page_cache": warmth_json(heat)}
        except NotFoundError:
            return None
        except GgufdError as error:
            facts |= {"loadable": False, "problem": _brief(error)}
        except Exception:  # one file must not hide all others
            log_fault("looking at a file ended in an error nobody foresaw")
            facts |= {"loadable": False, "problem": _brief(internal_error("the look at it"))}
        if not nameable:
            reason = "the name is not UTF-8, so no request can name the file"
            facts |= {"loadable": False, "problem": {"code": "bad_request", "detail": reason}}
        return FileEntry(path=name, nameable=nameable, facts=facts)

    def _facts(self, found: FoundModel, state: _State) -> dict[str, Any]:
        """What was found out about these very files, now or before."""
        key = found.paths[0]
        with self._lock:
            known = self._known.get(key)
            if known is not None and known[0] == state:
                self._known.move_to_end(key)
                return known[1]
        world = self._world
        description = describe(key, world.catalog, world.limits, world.roots, token_bytes=0)
        problem = description.problem
        facts = {**description.summary(), "problem": None if problem is None else _brief(problem)}
        model = description.model
        alone = model is not None and len(model.shards) == 1 and len(state) > 1
        if alone:
            others = ", ".join(shown(Path(name).name) for name in found.names[1:4])
            facts["warnings"] = [f"named like parts of it, and models of their own: {others}"]
        covered = model is None or {str(shard.path) for shard in model.shards} <= {real for real, _ in state}
        if covered and (problem is None or problem.code not in _PASSING):
            with self._lock:
                self._known[key] = (state, facts)
                self._known.move_to_end(key)
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
        return facts

    def _name(self, found: FoundModel) -> tuple[str, bool]:
        """The name by which a load finds the file, below the roots if that is clear, else absolute; if it has one."""
        name, path = found.names[0], found.paths[0]
        if locate(name, self._world.roots) != path:
            name = str(path)
        try:
            name.encode()
        except UnicodeEncodeError:
            return shown(os.fsencode(name)), False
        return name, True

    def _look(self, paths: Sequence[Path]) -> tuple[_State, Warmth]:
        """What lies at the paths now, one file after the other, and how warm all of it is together."""
        budget = _LOOKED_AT // max(1, len(paths))
        state: list[tuple[str, FileIdentity]] = []
        parts: list[tuple[int, Warmth]] = []
        for path in paths:
            with open_regular(path, self._world.roots) as file:
                state.append((str(file.real), file.identity))
                parts.append((file.identity.size, warmth(file, budget)))
        return tuple(state), joined(parts)


def warmth_json(heat: Warmth) -> dict[str, Any]:
    """How much of a file is in the page cache; `resident_fraction` is null where the system does not say."""
    fraction = heat.fraction
    return {"resident_fraction": None if fraction is None else round(fraction, 4), "sampled": heat.sampled}


def _brief(error: GgufdError) -> dict[str, Any]:
    return {"code": error.code, "detail": error.message}
