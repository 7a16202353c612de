"""Errors as RFC 9457 problems: the one map from an error's class and code to an HTTP status and a title.

The class says whose fault it is and so gives the status; a code may have a status of its own. The command line's batch
mode writes the same problems without any HTTP, which is why nothing of a web framework is imported here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.errors import (
    AccessError,
    BusyError,
    CancelledLoadError,
    CapacityError,
    ConflictError,
    DeviceError,
    FileError,
    GgufdError,
    NotFoundError,
    PlanError,
    RequestError,
    UnreachableError,
)

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:ggufd:problem:"
RESERVED: Final = frozenset({"type", "title", "status", "code", "detail", "instance", "tensors"})
"""No fact may bear these names: the problem's own members, and `tensors`, by which a plan is told from a problem."""
DEFAULT_RETRY_SECONDS: Final = 1.0

_STATUS_BY_CLASS: Final[Mapping[type[GgufdError], int]] = {
    RequestError: 400,
    NotFoundError: 404,
    AccessError: 403,
    ConflictError: 409,
    CancelledLoadError: 409,
    FileError: 422,
    PlanError: 422,
    DeviceError: 500,
    UnreachableError: 502,
    BusyError: 503,
    CapacityError: 507,
    GgufdError: 500,
}

_STATUS_BY_CODE: Final[Mapping[str, int]] = {
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "precondition_failed": 412,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "range_not_satisfiable": 416,
    "write_failed": 500,
    "bytes_not_kept": 409,
}

TITLES: Final[Mapping[str, str]] = {
    "internal": "Something unforeseen went wrong in the daemon",
    # the request
    "bad_request": "The request is malformed",
    "payload_too_large": "The request's body is larger than the daemon accepts",
    "method_not_allowed": "The resource exists, but not with this method",
    "not_acceptable": "The answer does not exist in a form the client accepts",
    "unsupported_media_type": "The body is not sent as JSON",
    "range_not_satisfiable": "The bytes asked for are not there",
    "precondition_failed": "The bytes are not, or not any more, those that were asked for",
    "not_found": "There is nothing here",
    "model_not_found": "There is no such model",
    "handle_not_found": "There is no handle with this id",
    "tensor_not_found": "The model has no tensor of this name",
    "key_not_found": "The model has no metadata key of this name",
    "permission_denied": "The file system does not let the daemon read this",
    # what is already there
    "idempotency_conflict": "The idempotency key was used with another request",
    "illegal_transition": "The load's state does not allow this",
    "not_resident": "The handle holds no model any more",
    "cancelled": "The handle was released before its load ended",
    # the file
    "empty_file": "The file is empty",
    "bad_magic": "The file is not a GGUF file",
    "unsupported_version": "The file is of a GGUF version that is not supported",
    "truncated": "The file ends before what it promises",
    "limit_exceeded": "The file's header exceeds a configured limit",
    "bad_alignment": "The file's alignment is not one that can be used",
    "wrong_key_type": "A metadata key has another type than it must have",
    "empty_key": "A metadata key is empty",
    "duplicate_key": "A metadata key occurs twice",
    "bad_tensor_name": "A tensor's name is not valid",
    "duplicate_tensor": "A tensor's name occurs twice",
    "bad_type": "A tensor's or a value's type is unknown",
    "bad_shape": "A tensor's shape is not possible",
    "bad_offset": "A tensor's data does not start where it must",
    "out_of_bounds": "A tensor's data lies outside the file",
    "is_directory": "The path is a folder, not a file",
    "not_regular_file": "The path is not a regular file",
    "file_changed": "The file changed while it was in use",
    "read_failed": "The file could not be read",
    "split_missing": "A part of a split model is missing",
    "split_name": "The parts of a split model are not named as they must be",
    "split_mismatch": "The parts of a split model do not belong together",
    # the metadata and the set of tensors
    "missing_key": "A required metadata key is missing",
    "bad_value": "A metadata value is not possible",
    "bad_tokenizer": "The tokenizer's arrays contradict each other",
    "missing_tensor": "A required tensor is missing",
    "unexpected_tensor": "The file has a tensor that its architecture does not know",
    "wrong_shape": "A tensor has another shape than the metadata implies",
    "not_a_model": "The file is a GGUF file, but not a model",
    "no_tensors": "The file has no tensors",
    "unsupported_architecture": "The architecture is not in the catalog",
    # the plan and the devices
    "impossible_plan": "No legal plan exists for this request",
    "unsupported_split": "This model cannot be split in the way asked for",
    "unsupported_load_mode": "The load mode asked for cannot be honoured",
    "device_not_loadable": "The device can be planned on, not loaded on",
    "insufficient_memory": "A device has too little memory",
    "device_failed": "A device failed",
    "bytes_not_kept": "The device keeps no bytes that could be read",
    # not now
    "queue_full": "The load queue is full",
    "still_loading": "The load has not come far enough yet",
    "too_many_connections": "More clients are connected than the daemon takes",
    "answers_full": "Answers that clients have not read take all the memory there is for them",
    "out_of_descriptors": "The daemon has as many files open as it may",
    "shutting_down": "The daemon is shutting down",
    "not_ready": "The daemon cannot take loads at the moment",
    # said by the command line alone
    "write_failed": "The file system did not take what was to be written",
    "unreachable": "No daemon answers at this address",
}


def error_classes() -> Iterator[type[GgufdError]]:
    """Every error class there is, the base first."""
    pending: list[type[GgufdError]] = [GgufdError]
    while pending:
        cls = pending.pop(0)
        yield cls
        pending.extend(cls.__subclasses__())


def status_of_class(cls: type[GgufdError], code: str) -> int:
    """The HTTP status of `code` raised as `cls`: the code's own, else that of the nearest class that has one."""
    own = _STATUS_BY_CODE.get(code)
    if own is not None:
        return own
    return next(_STATUS_BY_CLASS[base] for base in cls.__mro__ if base in _STATUS_BY_CLASS)


def status_of(error: GgufdError) -> int:
    """The HTTP status of `error`."""
    return status_of_class(type(error), error.code)


def all_codes() -> dict[str, int]:
    """Every code that can be answered, with its status, in the order of the class tree."""
    return {code: status_of_class(cls, code) for cls in error_classes() for code in cls.codes}


def problem(error: GgufdError, *, instance: str | None = None) -> dict[str, Any]:
    """The problem document of `error`: the standard members first, then the error's facts as fields of their own."""
    body: dict[str, Any] = {
        "type": TYPE_PREFIX + error.code,
        "title": TITLES[error.code],
        "status": status_of(error),
        "code": error.code,
        "detail": error.message,
    }
    if instance is not None:
        body["instance"] = instance
    clash = RESERVED & error.facts.keys()
    assert not clash, f"facts {sorted(clash)} of {error.code} bear names that a problem reserves"
    body.update(error.facts)
    return body


def retry_after_seconds(error: GgufdError) -> int | None:
    """What `Retry-After` says for `error`, in whole seconds, at least 1; None where no such header belongs."""
    if status_of(error) != 503:
        return None
    wanted = error.facts.get("retry_after_seconds", DEFAULT_RETRY_SECONDS)
    seconds = float(wanted) if isinstance(wanted, (int, float)) else DEFAULT_RETRY_SECONDS
    return max(1, -int(-seconds // 1))


def unforeseen(instance: str | None = None) -> dict[str, Any]:
    """The problem of an exception nobody raised on purpose: it says so and gives nothing away."""
    return problem(GgufdError("an unforeseen error; the daemon's log has the details"), instance=instance)


def error_from(body: Mapping[str, Any]) -> GgufdError:
    """The error that a problem document tells of, as its own class: the inverse of `problem`.

    A code that this version does not know becomes a plain GgufdError that repeats it.
    """
    code, detail = str(body.get("code", "")), str(body.get("detail") or body.get("title") or "no reason given")
    facts = {name: value for name, value in body.items() if name not in RESERVED}
    for cls in error_classes():
        if code in cls.codes:
            return cls(detail, code=code, **facts)
    return GgufdError(f"{code}: {detail}", **facts)
