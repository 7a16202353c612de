"""What the machine is short of is told from what is wrong with a file."""

import errno

import pytest

from app.errors import BusyError, CapacityError, GgufdError
from app.modelfile.shortage import shortage


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (MemoryError(), CapacityError, "insufficient_memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), CapacityError, "insufficient_memory"),
        (OSError(errno.EMFILE, "Too many open files"), BusyError, "out_of_descriptors"),
        (OSError(errno.ENFILE, "Too many open files in system"), BusyError, "out_of_descriptors"),
    ],
)
def test_wants_have_their_errors(error: BaseException, kind: type[GgufdError], code: str) -> None:
    """No memory and no descriptors are errors of their own, and say what failed."""
    want = shortage(error, "reading it")
    assert isinstance(want, kind)
    assert code == want.code
    assert want.message.startswith("reading it failed: ")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "x"), OSError("x"), ValueError("x"), KeyboardInterrupt()])
def test_other_errors_are_none(error: BaseException) -> None:
    """Whatever else goes wrong is for others to name."""
    assert shortage(error, "x") is None
