from pathlib import Path

from app.devices.host_memory import available_memory
from app.units import GIB, KIB, MIB


def world(folder: Path, *, available: int | None, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc and a /sys/fs/cgroup of our own."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroups.mkdir()
    if available is not None:
        text = f"MemTotal: 99999999 kB\nMemAvailable:   {available // KIB} kB\nBuffers: 1 kB\n"
        (proc / "meminfo").write_text(text)
    (proc / "self" / "cgroup").write_text(groups)
    for name, content in files.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return proc, cgroups


def test_without_a_limit_it_is_what_the_machine_has(tmp_path: Path) -> None:
    """No control group in the way: MemAvailable."""
    assert 10 * GIB == available_memory(*world(tmp_path, available=10 * GIB, groups="0::/\n", files={}))


def test_a_limit_counts_less_what_is_held_against_it(tmp_path: Path) -> None:
    """The nearest limit of the group or its parents, less anonymous and shared memory; page cache can go."""
    stat = f"anon {100 * MIB}\nfile {900 * MIB}\nshmem {50 * MIB}\n"
    files = {
        "a/memory.max": "max\n",
        "a/b/memory.max": f"{4 * GIB}\n",
        "memory.max": f"{8 * GIB}\n",
        "a/b/memory.stat": stat,
    }
    found = available_memory(*world(tmp_path, available=10 * GIB, groups="0::/a/b\n", files=files))
    assert 4 * GIB - 150 * MIB == found


def test_the_older_layout_of_control_groups(tmp_path: Path) -> None:
    """Version 1: the memory controller's own tree; without the group's folder (a container's view) its top."""
    files = {
        "memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/memory.stat": f"total_rss {MIB}\ntotal_shmem {MIB}\nrss 5\n",
    }
    groups = "9:name=systemd:/\n4:memory:/docker/abc\n0::/\n"
    found = available_memory(*world(tmp_path, available=10 * GIB, groups=groups, files=files))
    assert 2 * GIB - 2 * MIB == found


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    """What is left is never negative."""
    files = {"memory.max": "100\n", "memory.stat": "anon 200\n"}
    assert 0 == available_memory(*world(tmp_path, available=GIB, groups="0::/\n", files=files))


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    """Without any of the files, or with nonsense in them, the answer is 0, not an error."""
    assert 0 == available_memory(tmp_path / "none", tmp_path / "none")
    proc, cgroups = world(tmp_path, available=None, groups="nonsense\n::\n0::/../..\n", files={"memory.max": "x\n"})
    (proc / "meminfo").write_text("MemAvailable:\nMemAvailable: many kB\n")
    assert 0 == available_memory(proc, cgroups)


def test_this_machine_says() -> None:
    """Here the answer is some memory, and no more than the machine has."""
    assert MIB < available_memory() < 1 << 50
