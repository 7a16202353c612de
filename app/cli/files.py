"""What the system says of a file or folder that a command was told to use, as an error that says the same."""

import errno
from typing import Final

from app.errors import AccessError, FileError, GgufdError, NotFoundError

_MISSING: Final = (errno.ENOENT, errno.ENOTDIR)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


def cannot_read(path: str, error: OSError) -> GgufdError:
    """Why the file at `path` cannot be read."""
    message = f"{path} cannot be read: {_reason(error)}"
    return _common(message, error) or FileError(
        message, code="is_directory" if error.errno == errno.EISDIR else "read_failed"
    )


def cannot_write(path: str, error: OSError) -> GgufdError:
    """Why nothing can be written at `path`."""
    message = f"{path} cannot be used: {_reason(error)}"
    return _common(message, error) or AccessError(message, code="write_failed")


def _common(message: str, error: OSError) -> GgufdError | None:
    if error.errno in _MISSING:
        return NotFoundError(message, code="not_found")
    if error.errno in _FORBIDDEN:
        return AccessError(message, code="permission_denied")
    return None


def _reason(error: OSError) -> str:
    if error.errno == errno.EEXIST:
        return "a file is there, not a folder"
    return error.strerror or type(error).__name__
