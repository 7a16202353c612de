"""How much memory this process may still take: what the machine has, or what its control group leaves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.units import KIB

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be taken now: MemAvailable, or less where a control group's limit is nearer.

    Against a limit counts what its processes hold (anonymous and shared memory), not the page cache they left behind.
    0 if the system does not say.
    """
    rooms = [room for room in (_machine(proc), *_groups(proc, cgroups)) if room is not None]
    return max(0, min(rooms, default=0))


def _machine(proc: Path) -> int | None:
    for line in _lines(proc / "meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return _number(rest.split()[0]) * KIB if rest.split() else None
    return None


def _groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """What each limit above this process leaves; both layouts of the control group tree, as the kernel lists them."""
    for line in _lines(proc / "self" / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            yield from _walk((cgroups, cgroups / "unified"), path, "memory.max", ("anon", "shmem"))
        elif "memory" in controllers.split(","):
            names = ("total_rss", "total_shmem")
            yield from _walk((cgroups / "memory",), path, "memory.limit_in_bytes", names)


def _walk(roots: tuple[Path, ...], path: str, limit_file: str, held: tuple[str, ...]) -> Iterator[int]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for root in roots:
        for depth in range(len(parts), -1, -1):
            group = root.joinpath(*parts[:depth])
            limit = next(iter(_lines(group / limit_file)), "")
            if limit.isdecimal():  # `max` is no limit
                yield int(limit) - _held(group, held)


def _held(group: Path, names: tuple[str, ...]) -> int:
    total = 0
    for line in _lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        if name in names:
            total += _number(value)
    return total


def _number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
