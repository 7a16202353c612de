"""Which kind of file system holds a file: mapping over a network is slow, so the negotiation asks."""

import os
from pathlib import Path
from typing import Final

from app.modelfile import libc

_KINDS: Final = {
    0x0000_6969: "nfs",
    0x0000_517B: "cifs",
    0xFF53_4D42: "cifs",
    0xFE53_4D42: "cifs",
    0x6573_5546: "fuse",
    0x0BD0_0BD0: "lustre",
    0x0102_1997: "9p",
    0x00C3_6400: "ceph",
    0x4750_4653: "gpfs",
    0x5346_414F: "afs",
    0x1983_0326: "beegfs",
    0x7375_7245: "coda",
    0x0102_1994: "tmpfs",
    0x8584_58F6: "ramfs",
    0x794C_7630: "overlay",
    0x7371_7368: "squashfs",
    0x0000_EF53: "ext",
    0x5846_5342: "xfs",
    0x9123_683E: "btrfs",
    0x2FC1_2FC1: "zfs",
    0xF2F5_2010: "f2fs",
    0x9584_58F6: "hugetlbfs",
}
_NETWORK: Final = frozenset({"nfs", "cifs", "fuse", "lustre", "9p", "ceph", "gpfs", "afs", "beegfs", "coda"})


def filesystem_kind(place: Path | int) -> str:
    """The kind of file system under a path or descriptor (`ext`, `nfs`, `fuse`, …); `other` if unknown or unasked."""
    try:
        if isinstance(place, int):
            magic = libc.filesystem_magic(place)
        else:
            fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
            try:
                magic = libc.filesystem_magic(fd)
            finally:
                os.close(fd)
    except (OSError, ValueError):
        return "other"
    return _KINDS.get(magic, "other")


def is_network(kind: str) -> bool:
    """Whether page faults may cross a network there. FUSE counts: most mounts of buckets and shares are FUSE."""
    return kind in _NETWORK
