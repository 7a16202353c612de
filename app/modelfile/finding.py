"""Finding models: a walk through the roots that is bounded in depth, number and time, and never leaves them."""

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.modelfile.shards import place_by_name

ENDING: Final = ".gguf"
_LOOK_AT_CLOCK: Final = 256  # entries between two looks at the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkLimits:
    """How far a walk goes. `entries` counts whatever lies in the folders; `seconds` are for all roots together."""

    depth: int = 16
    entries: int = 500_000
    models: int = 50_000
    seconds: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A file, or the files of one set by their names, in order: paths below `root`, which is one of the roots."""

    root: Path
    names: tuple[str, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the files lie."""
        return tuple(self.root / name for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The models that were found, sorted by root and path, and which limits the walk met (names of WalkLimits).

    `unreadable` counts folders that could not be read, a missing root among them.
    """

    models: tuple[FoundModel, ...]
    limits_met: tuple[str, ...] = ()
    unreadable: int = 0


def find_models(roots: Sequence[Path], limits: WalkLimits, clock: Callable[[], float] = time.monotonic) -> Findings:
    """Every file under `roots` whose name ends in `.gguf`; nothing is opened but folders.

    A link is followed where it leads to somewhere under the roots, and every folder is entered once, by its own path
    before any link's. Never raises: what cannot be read is counted.
    """
    return _Walk(roots, limits, clock).run()


@dataclass(slots=True)
class _Walk:
    """One walk under way."""

    roots: Sequence[Path]
    limits: WalkLimits
    clock: Callable[[], float]
    _real_roots: list[str] = field(default_factory=list)
    _deadline: float = 0.0
    _entries: int = 0
    _sets: dict[tuple[int, str, str, int], list[str]] = field(default_factory=dict)
    _seen: set[tuple[int, int]] = field(default_factory=set)
    _met: dict[str, None] = field(default_factory=dict)
    _unreadable: int = 0

    def run(self) -> Findings:
        self._deadline = self.clock() + self.limits.seconds
        self._real_roots = [os.path.realpath(root) for root in self.roots]
        roots: deque[tuple[int, str, int]] = deque((number, "", 0) for number in range(len(self.roots)))
        waiting: deque[tuple[int, str, int]] = deque()
        linked: deque[tuple[int, str, int]] = deque()
        while (queue := waiting or roots or linked) and not self._exhausted():
            number, folder, depth = queue.popleft()
            self._enter(number, folder, depth, waiting, linked)
        found = [
            FoundModel(root=self.roots[number], names=tuple(sorted(names)))
            for (number, *_), names in sorted(self._sets.items(), key=lambda item: (item[0][0], min(item[1])))
        ]
        return Findings(models=tuple(found), limits_met=tuple(self._met), unreadable=self._unreadable)

    def _enter(
        self,
        number: int,
        folder: str,
        depth: int,
        waiting: deque[tuple[int, str, int]],
        linked: deque[tuple[int, str, int]],
    ) -> None:
        """Go through one folder, by a descriptor whose place was checked; what lies deeper joins the queues."""
        try:
            fd = os.open(self.roots[number] / folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError):
            self._unreadable += 1
            return
        try:
            status = os.fstat(fd)
            identity = (status.st_dev, status.st_ino)
            if identity in self._seen or not self._inside(os.readlink(f"/proc/self/fd/{fd}")):
                return
            self._seen.add(identity)
            for entry in self._listed(fd):
                path = os.path.join(folder, entry.name)
                try:
                    if entry.is_dir(follow_symlinks=False):
                        self._deeper(waiting, number, path, depth)
                    elif entry.is_symlink():
                        if entry.name.endswith(ENDING) and self._leads_to_file(number, path):
                            self._keep(number, folder, entry.name)
                        elif entry.is_dir():
                            self._deeper(linked, number, path, depth)
                    elif entry.name.endswith(ENDING) and entry.is_file(follow_symlinks=False):
                        self._keep(number, folder, entry.name)
                except OSError:
                    continue  # it went away, or is a link that leads nowhere
        except OSError:
            self._unreadable += 1
        finally:
            os.close(fd)

    def _listed(self, fd: int) -> Iterator[os.DirEntry[str]]:
        with os.scandir(fd) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries % _LOOK_AT_CLOCK == 0 and self._exhausted():
                    return
                yield entry

    def _exhausted(self) -> bool:
        """Whether a limit ends the walk; notes which."""
        spent = {
            "seconds": self.clock() > self._deadline,
            "entries": self._entries > self.limits.entries,
            "models": len(self._sets) >= self.limits.models,
        }
        self._met.update(dict.fromkeys(name for name, met in spent.items() if met))
        return any(spent.values())

    def _deeper(self, queue: deque[tuple[int, str, int]], number: int, path: str, depth: int) -> None:
        if depth < self.limits.depth:
            queue.append((number, path, depth + 1))
        else:
            self._met["depth"] = None

    def _keep(self, number: int, folder: str, name: str) -> None:
        place = place_by_name(name)
        prefix, count = (place[0], place[2]) if place is not None else (name, 0)
        self._sets.setdefault((number, folder, prefix, count), []).append(os.path.join(folder, name))

    def _leads_to_file(self, number: int, path: str) -> bool:
        whole = os.path.join(self.roots[number], path)
        return stat.S_ISREG(os.stat(whole).st_mode) and self._inside(os.path.realpath(whole))

    def _inside(self, real: str) -> bool:
        return any(real == root or real.startswith(root.rstrip("/") + "/") for root in self._real_roots)
