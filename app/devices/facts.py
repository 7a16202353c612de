"""What a device is and what it can do: capabilities are named once, here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The reference's device capabilities under their own names, plus whether a mapped file may back its tensors.

    `asynchronous` is `async` on the wire (a reserved word in Python). `split_buffer` is none of them: no device here
    has it, which is why row mode is refused.
    """

    asynchronous: bool = True
    host_buffer: bool = True
    buffer_from_host_ptr: bool = True
    events: bool = True
    mmap_support: bool = True

    def as_json(self) -> dict[str, bool]:
        """The capabilities as `/v1/devices` and plan requests spell them."""
        return {
            "async": self.asynchronous,
            "host_buffer": self.host_buffer,
            "buffer_from_host_ptr": self.buffer_from_host_ptr,
            "events": self.events,
            "mmap_support": self.mmap_support,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A snapshot of one device. Sizes in bytes.

    `kind` is `host`, `simulated`, `opencl`, … `alignment_bytes` is what a tensor's start must be a multiple of in a
    buffer; `max_allocation_bytes` is the largest single buffer. `allocated_bytes` is what ggufd holds there; the
    capacity is enforced on it. `free_bytes` is `memory_bytes - allocated_bytes`, or what the driver reports.
    """

    name: str
    kind: str
    description: str
    memory_bytes: int
    free_bytes: int
    allocated_bytes: int
    alignment_bytes: int
    max_allocation_bytes: int
    capabilities: Capabilities
