"""Every error ggufd raises on purpose.

    GgufdError
    ├── RequestError                 the request cannot be understood                      bad_request
    │   └── NotFoundError            nothing of that name (or it lies outside the roots)   not_found
    ├── AccessError                  the caller may not                                    forbidden
    ├── ConflictError                the thing exists, in a state that forbids this        conflict
    ├── FileError                    the bytes, or the file that holds them, are bad       bad_file
    │   └── MetadataError            the metadata contradicts itself or the architecture   bad_metadata
    ├── PlanError                    no legal plan exists for this model and request       impossible_plan
    ├── CapacityError                a device has too little memory                        insufficient_memory
    ├── BusyError                    not now: queue full, still loading, shutting down     busy
    ├── DeviceError                  a device failed to do what it said it can             device_failed
    ├── CancelledLoadError           the client released the handle while it was loading   cancelled
    └── UnreachableError             no daemon answers where a client looked for one       unreachable

A class says whose fault it is (and so which HTTP status, decided in `api/problems.py`); the `code` says which
fact failed and never changes once published; the facts themselves travel as fields.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

Fact = str | int | float | bool | None | list["Fact"] | dict[str, "Fact"]


class GgufdError(Exception):
    """Base of all deliberate errors: a message that names the fact, a stable code, and the facts as fields.

    `message` is one sentence a person can act on. `facts` are JSON values; their names carry units
    (`needed_bytes`). `code` is one of the class's `codes`; the first is the default.
    """

    codes: ClassVar[tuple[str, ...]] = ("internal",)

    def __init__(self, message: str, /, *, code: str | None = None, **facts: Fact) -> None:
        super().__init__(message)
        self.message: Final = message
        self.code: Final = code if code is not None else self.codes[0]
        self.facts: Final[Mapping[str, Fact]] = facts
        assert self.code in self.codes, f"{self.code} is not a code of {type(self).__name__}"

    def __str__(self) -> str:
        return self.message


class RequestError(GgufdError):
    """The request is malformed: a field, a ratio, a pattern, a device that cannot be meant. Fact: `field`."""

    codes: ClassVar[tuple[str, ...]] = (
        "bad_request",
        "payload_too_large",
        "method_not_allowed",
        "not_acceptable",
        "unsupported_media_type",
        "range_not_satisfiable",
    )


class NotFoundError(RequestError):
    """Nothing of that name. A model path outside the roots gets the very same answer as a missing one."""

    codes: ClassVar[tuple[str, ...]] = (
        "not_found",
        "model_not_found",
        "handle_not_found",
        "architecture_not_found",
        "tensor_not_found",
        "key_not_found",
    )


class AccessError(GgufdError):
    """The file system or a missing right forbids it."""

    codes: ClassVar[tuple[str, ...]] = ("forbidden", "permission_denied")


class ConflictError(GgufdError):
    """The request contradicts what is already there."""

    codes: ClassVar[tuple[str, ...]] = (
        "conflict",
        "idempotency_conflict",
        "in_use",
        "illegal_transition",
        "stale_plan",
        "not_resident",
    )


class FileError(GgufdError):
    """The file is not a GGUF file we can trust. Facts: `file`, and `key` or `tensor`, `expected`, `found`."""

    codes: ClassVar[tuple[str, ...]] = (
        "bad_file",
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
        "bad_metadata",
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

    codes: ClassVar[tuple[str, ...]] = (
        "impossible_plan",
        "unsupported_split",
        "unsupported_load_mode",
        "device_not_loadable",
    )


class CapacityError(GgufdError):
    """A device has too little memory. Facts: `devices`: a list of `{device, needed_bytes, free_bytes}`."""

    codes: ClassVar[tuple[str, ...]] = ("insufficient_memory",)


class BusyError(GgufdError):
    """Not now. Fact: `retry_after_seconds`."""

    codes: ClassVar[tuple[str, ...]] = ("busy", "queue_full", "still_loading", "cooling_down", "shutting_down")


class DeviceError(GgufdError):
    """A device failed. Facts: `device`, `operation`."""

    codes: ClassVar[tuple[str, ...]] = ("device_failed",)


class CancelledLoadError(GgufdError):
    """The handle was released before its load ended."""

    codes: ClassVar[tuple[str, ...]] = ("cancelled",)


class UnreachableError(GgufdError):
    """No daemon answers, or it broke off; only clients say this. Fact: `url`."""

    codes: ClassVar[tuple[str, ...]] = ("unreachable",)


def codes_of(kind: type[GgufdError]) -> tuple[str, ...]:
    """Every code that an error of `kind`, or of a kind below it, can bear: each once, its own first."""
    below = (code for child in kind.__subclasses__() for code in codes_of(child))
    return tuple(dict.fromkeys((*kind.codes, *below)))
