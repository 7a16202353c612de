"""Opening a path that nobody vouches for: what it is, and where it lies, is decided on a descriptor before any read."""

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from app.errors import AccessError, FileError, GgufdError, NotFoundError
from app.modelfile.shortage import shortage
from app.modelfile.text import shown
from app.modelfile.types import FileIdentity, Shard

_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def identity_of(status: os.stat_result) -> FileIdentity:
    """The identity that `status` describes."""
    return FileIdentity(
        device=status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def not_found(path: Path, roots: Sequence[Path] | None) -> NotFoundError:
    """The one answer for a path that is missing and for one that lies outside the roots."""
    where = "" if roots is None else " under the model roots" if roots else ": no model roots are configured"
    return NotFoundError(f"no model at {shown(path)}{where}", code="model_not_found", model=shown(path))


def under_roots(real: str, roots: Sequence[Path] | None) -> bool:
    """Whether the resolved path `real` is one of `roots` or lies below one; no roots means everywhere."""
    if roots is None:
        return True
    resolved = (os.path.realpath(root) for root in roots)
    return any(real == root or real.startswith(root.rstrip("/") + "/") for root in resolved)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """An open regular file, its place after all links, and its identity at the time of opening. Closes with `with`."""

    fd: int
    asked: Path
    real: Path
    identity: FileIdentity

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes at `offset`. Raises FileError `file_changed`, `truncated` or `read_failed`."""
        pieces: list[bytes] = []
        while length:
            try:
                piece = os.pread(self.fd, length, offset)
            except InterruptedError:
                continue
            except OSError as error:
                raise read_failed(self.asked, error, offset) from error
            if not piece:
                self.require_unchanged()
                raise ended_early(self.asked, offset, length)
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def require_unchanged(self) -> None:
        """Raise FileError `file_changed` unless the file is still what was opened."""
        require_identity(self.fd, self.identity, self.asked)


IDENTITY_FIELDS: Final = ("device", "inode", "size", "mtime_ns", "ctime_ns")
CONTENT_FIELDS: Final = ("size", "mtime_ns")
"""What changes when a file is written to, and not when it is renamed, removed or given other rights."""


def require_identity(fd: int, expected: FileIdentity, path: Path, fields: Sequence[str] = IDENTITY_FIELDS) -> None:
    """Raise FileError `file_changed` unless the open file has the identity `expected`, naming what differs."""
    try:
        found = identity_of(os.fstat(fd))
    except OSError as error:
        raise read_failed(path, error, 0) from error
    for name in fields:
        was, now = getattr(expected, name), getattr(found, name)
        if was != now:
            raise FileError(
                f"{shown(path)}: changed since it was read: {name} was {was}, is {now}",
                code="file_changed",
                file=shown(path),
                field=name,
                expected=was,
                found=now,
            )


def read_failed(path: Path, error: OSError, offset: int) -> GgufdError:
    """The system's refusal to read: a want of the machine's, or FileError with its errno's name as the fact `found`."""
    want = shortage(error, f"{shown(path)}: reading at {offset}")
    if want is not None:
        return want
    reason = error.strerror or type(error).__name__
    return FileError(
        f"{shown(path)}: reading at {offset} failed: {reason}",
        code="read_failed",
        file=shown(path),
        offset=offset,
        found=errno_name(error),
    )


def ended_early(path: Path, offset: int, length: int) -> FileError:
    """A file that ends before the bytes its size promised."""
    return FileError(
        f"{shown(path)}: ended at {offset} with {length} bytes still to read",
        code="truncated",
        file=shown(path),
        offset=offset,
        expected=length,
        found=0,
    )


def errno_name(error: OSError) -> str:
    """`EINVAL` and the like."""
    return errno.errorcode.get(error.errno or 0, "unknown")


def open_node(path: Path, roots: Sequence[Path] | None) -> tuple[int, str, os.stat_result]:
    """An O_PATH descriptor of whatever lies at `path`, its resolved place and status; the caller closes it.

    O_PATH neither waits for a FIFO's writer nor wakes a device, so the kind is known before anything is opened.
    Raises NotFoundError (also where the descriptor lies outside `roots`), AccessError, FileError.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _cannot_open(path, roots, error) from error
    try:
        real = os.readlink(f"/proc/self/fd/{fd}")
        status = os.fstat(fd)
    except OSError as error:
        os.close(fd)
        raise _cannot_open(path, roots, error) from error
    if not under_roots(real, roots):
        os.close(fd)
        raise not_found(path, roots)
    return fd, real, status


def open_regular(path: Path, roots: Sequence[Path] | None = None) -> OpenedFile:
    """Open the regular file at `path` for reading.

    Raises NotFoundError `model_not_found`, AccessError `permission_denied`, FileError `is_directory` or
    `not_regular_file` (and `read_failed` for anything else the system says).
    """
    node, real, status = open_node(path, roots)
    try:
        if stat.S_ISDIR(status.st_mode):
            raise FileError(f"{shown(path)}: is a folder, not a file", code="is_directory", file=shown(path))
        if not stat.S_ISREG(status.st_mode):
            kind = next((name for test, name in _KINDS if test(status.st_mode)), "no regular file")
            raise FileError(
                f"{shown(path)}: is {kind}, not a regular file",
                code="not_regular_file",
                file=shown(path),
                expected="a regular file",
                found=kind,
            )
        # The descriptor's own link leads to the very file that was checked, whatever the path names by now.
        fd = os.open(f"/proc/self/fd/{node}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise _cannot_open(path, roots, error) from error
    finally:
        os.close(node)
    try:
        return OpenedFile(fd=fd, asked=path, real=Path(real), identity=identity_of(os.fstat(fd)))
    except OSError as error:
        os.close(fd)
        raise _cannot_open(path, roots, error) from error


def reopen(shard: Shard) -> OpenedFile:
    """Open a validated shard again.

    Raises FileError `file_changed` unless it is still the very file, size and times included (one that is gone counts
    as changed), and what `open_regular` raises.
    """
    try:
        file = open_regular(shard.path)
    except NotFoundError as error:
        raise FileError(
            f"{shown(shard.path)}: is gone since it was read", code="file_changed", file=shown(shard.path)
        ) from error
    try:
        require_identity(file.fd, shard.identity, shard.path)
    except FileError:
        os.close(file.fd)
        raise
    return file


def require_present(path: Path, roots: Sequence[Path] | None) -> None:
    """Raise NotFoundError unless something lies at `path`, under the roots; or AccessError if that can't be known."""
    node, _, _ = open_node(path, roots)
    os.close(node)


def list_folder(path: Path, roots: Sequence[Path] | None) -> list[str]:
    """The names in a folder, in no order. Raises NotFoundError, AccessError, FileError `read_failed`."""
    node, _, _ = open_node(path, roots)
    try:
        return os.listdir(f"/proc/self/fd/{node}")
    except OSError as error:
        raise _cannot_open(path, roots, error) from error
    finally:
        os.close(node)


def _cannot_open(path: Path, roots: Sequence[Path] | None, error: OSError | ValueError) -> GgufdError:
    nowhere = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
    if not isinstance(error, OSError) or error.errno in nowhere or not under_roots(os.path.realpath(path), roots):
        return not_found(path, roots)
    if isinstance(error, PermissionError):
        return AccessError(
            f"{shown(path)}: the system does not let us read it", code="permission_denied", file=shown(path)
        )
    return read_failed(path, error, 0)
