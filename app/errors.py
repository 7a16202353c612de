"""Every error ggufd raises on purpose.

    GgufdError
    ├── RequestError                 the request cannot be understood
    │   └── NotFoundError            nothing of that name (or it lies outside the roots)
    ├── AccessError                  the caller may not
    ├── ConflictError                the thing exists, in a state that forbids this
    ├── FileError                    the bytes, or the file that holds them, are bad
    │   └── MetadataError            the metadata contradicts itself or the architecture
    ├── PlanError                    no legal plan exists for this model and request
    ├── CapacityError                a device has too little memory
    ├── BusyError                    not now: queue full, still loading, too many clients, shutting down
    ├── DeviceError                  a device failed to do what it said it can
    ├── CancelledLoadError           the client released the handle while it was loading
    └── UnreachableError             no daemon answers where a client looked for one

A class says whose fault it is (and so which HTTP status, decided in `api/problems.py`); the `code` says which
fact failed and never changes once published; the facts themselves travel as fields.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Final

Fact = str | int | float | bool | None | list["Fact"] | dict[str, "Fact"]


def _in_json(fact: Fact) -> Fact:
    """The fact as JSON can carry it: a number of a file that is not finite becomes its name."""
    if isinstance(fact, float) and not math.isfinite(fact):
        return str(fact)
    if isinstance(fact, list):
        return [_in_json(one) for one in fact]
    if isinstance(fact, dict):
        return {name: _in_json(one) for name, one in fact.items()}
    return fact


class GgufdError(Exception):
    """Base of all deliberate errors: a message that names the fact, a stable code, and the facts as fields.

    `message` is one sentence a person can act on. `facts` are JSON values; their names carry units
    (`needed_bytes`). `code` is one of the class's `codes`; it may be left out where the class has a `general_code`.
    """

    codes: ClassVar[tuple[str, ...]] = ("internal",)
    general_code: ClassVar[str | None] = "internal"

    def __init__(self, message: str, /, *, code: str | None = None, **facts: Fact) -> None:
        super().__init__(message)
        code = code or self.general_code
        assert code is not None, f"{type(self).__name__} needs a code: which fact failed?"
        assert code in self.codes, f"{code} is not a code of {type(self).__name__}"
        self.message: Final = message
        self.code: Final = code
        self.facts: Final[Mapping[str, Fact]] = {name: _in_json(fact) for name, fact in facts.items()}

    def __str__(self) -> str:
        return self.message


class RequestError(GgufdError):
    """The request is malformed: a field, a ratio, a pattern, a device that cannot be meant. Fact: `field`."""

    general_code = "bad_request"
    codes: ClassVar[tuple[str, ...]] = (
        "bad_request",
        "payload_too_large",
        "method_not_allowed",
        "not_acceptable",
        "unsupported_media_type",
        "range_not_satisfiable",
        "precondition_failed",
    )


class NotFoundError(RequestError):
    """Nothing of that name. A model path outside the roots gets the very same answer as a missing one."""

    general_code = "not_found"
    codes: ClassVar[tuple[str, ...]] = (
        "not_found",
        "model_not_found",
        "handle_not_found",
        "tensor_not_found",
        "key_not_found",
    )


class AccessError(GgufdError):
    """The file system or a missing right forbids it."""

    general_code = "permission_denied"
    codes: ClassVar[tuple[str, ...]] = ("permission_denied", "write_failed")


class ConflictError(GgufdError):
    """The request contradicts what is already there."""

    general_code = None
    codes: ClassVar[tuple[str, ...]] = (
        "idempotency_conflict",
        "illegal_transition",
        "not_resident",
    )


class FileError(GgufdError):
    """The file is not a GGUF file we can trust. Facts: `file`, and `key` or `tensor`, `expected`, `found`."""

    general_code = None
    codes: ClassVar[tuple[str, ...]] = (
        "empty_file",
        "bad_magic",
        "unsupported_version",
        "truncated",
        "limit_exceeded",
        "bad_alignment",
        "wrong_key_type",
        "empty_key",
        "duplicate_key",
        "bad_tensor_name",
        "duplicate_tensor",
        "bad_type",
        "bad_shape",
        "bad_offset",
        "out_of_bounds",
        "is_directory",
        "not_regular_file",
        "file_changed",
        "read_failed",
        "split_missing",
        "split_name",
        "split_mismatch",
    )


class MetadataError(FileError):
    """The metadata or the set of tensors is not what the architecture needs."""

    codes: ClassVar[tuple[str, ...]] = (
        "missing_key",
        "wrong_key_type",
        "bad_value",
        "bad_tokenizer",
        "missing_tensor",
        "unexpected_tensor",
        "wrong_shape",
        "not_a_model",
        "no_tensors",
        "unsupported_architecture",
    )


class PlanError(GgufdError):
    """No legal plan exists. Facts: `architecture`, `capability`, `tensor`, `device`, as they apply."""

    general_code = "impossible_plan"
    codes: ClassVar[tuple[str, ...]] = (
        "impossible_plan",
        "unsupported_split",
        "unsupported_load_mode",
        "device_not_loadable",
    )


class CapacityError(GgufdError):
    """A device has too little memory. Facts: `devices`: a list of `{device, needed_bytes, free_bytes}`."""

    general_code = "insufficient_memory"
    codes: ClassVar[tuple[str, ...]] = ("insufficient_memory",)


class BusyError(GgufdError):
    """Not now. Fact: `retry_after_seconds`."""

    general_code = None
    codes: ClassVar[tuple[str, ...]] = (
        "queue_full",
        "still_loading",
        "too_many_connections",
        "answers_full",
        "out_of_descriptors",
        "shutting_down",
        "not_ready",
    )


class DeviceError(GgufdError):
    """A device failed, or cannot do what is asked. Facts: `device`, `operation`."""

    general_code = "device_failed"
    codes: ClassVar[tuple[str, ...]] = ("device_failed", "bytes_not_kept")


class CancelledLoadError(GgufdError):
    """The handle was released before its load ended."""

    general_code = "cancelled"
    codes: ClassVar[tuple[str, ...]] = ("cancelled",)


class UnreachableError(GgufdError):
    """No daemon answers, or it broke off; only clients say this. Fact: `url`."""

    general_code = "unreachable"
    codes: ClassVar[tuple[str, ...]] = ("unreachable",)


def codes_of(kind: type[GgufdError]) -> tuple[str, ...]:
    """Every code that an error of `kind`, or of a kind below it, can bear: each once, its own first."""
    below = (code for child in kind.__subclasses__() for code in codes_of(child))
    return tuple(dict.fromkeys((*kind.codes, *below)))
