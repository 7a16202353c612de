from itertools import product

import pytest

from app.devices.facts import Capabilities, DeviceFacts
from app.errors import PlanError
from app.loading.negotiation import (
    FALLBACKS,
    FallbackReason,
    LoadMode,
    MappingDecision,
    direct_io_refused,
    lock_refused,
    map_refused,
    negotiate,
)

NETWORKS = ("nfs", "cifs", "fuse", "lustre", "9p")


def device(name: str, kind: str = "host", *, pointer: bool = True, mmap: bool = True) -> DeviceFacts:
    return DeviceFacts(
        name=name,
        kind=kind,
        description="",
        memory_bytes=1,
        free_bytes=1,
        allocated_bytes=0,
        alignment_bytes=32,
        max_allocation_bytes=1,
        capabilities=Capabilities(buffer_from_host_ptr=pointer, mmap_support=mmap),
    )


HOST = device("host")
GPU = device("gpu0", "opencl", pointer=False)
OLD = device("old0", "opencl", pointer=False, mmap=False)


def modes(decision: MappingDecision) -> dict[str, str]:
    return {reason.device: reason.mode.value for reason in decision.reasons}


def test_automatic_maps_what_can_be_mapped_and_copies_the_rest() -> None:
    """AUTO is mmap where every device supports it, a tensor stays whole and the file is local; each says why."""
    decision = negotiate(LoadMode.AUTO, [HOST, GPU], mappable={"host": 8, "gpu0": 100}, filesystem="ext")
    assert (LoadMode.AUTO, LoadMode.MMAP, (), ()) == (
        decision.requested,
        decision.resolved,
        decision.fallbacks,
        decision.warnings,
    )
    assert {"host": "mmap", "gpu0": "none"} == modes(decision)
    assert "buffer_from_host_ptr" in decision.reasons[1].reason


@pytest.mark.parametrize(
    ("devices", "mappable", "filesystem", "reason", "word"),
    [
        ([HOST, OLD], {"host": 8}, "ext", FallbackReason.DEVICE_WITHOUT_MMAP, "old0"),
        ([GPU], {"gpu0": 100}, "ext", FallbackReason.NOTHING_TO_MAP, "no tensor"),
        ([HOST, GPU], {"gpu0": 100}, "ext", FallbackReason.NOTHING_TO_MAP, "no tensor"),
        ([HOST], {}, "ext", FallbackReason.NOTHING_TO_MAP, "no tensor"),
        *(([HOST], {"host": 8}, kind, FallbackReason.NETWORK_FILE_SYSTEM, kind) for kind in NETWORKS),
    ],
)
def test_automatic_reads_where_mapping_is_not_wise(
    devices: list[DeviceFacts], mappable: dict[str, int], filesystem: str, reason: FallbackReason, word: str
) -> None:
    """AUTO is none, every device says what stood in the way, and one fallback is counted."""
    decision = negotiate(LoadMode.AUTO, devices, mappable=mappable, filesystem=filesystem)
    assert LoadMode.NONE is decision.resolved
    assert [(LoadMode.MMAP, LoadMode.NONE, reason)] == [
        (it.from_mode, it.to_mode, it.reason) for it in decision.fallbacks
    ]
    assert [device.name for device in devices] == [it.device for it in decision.reasons]
    assert all(it.mode is LoadMode.NONE and word in it.reason for it in decision.reasons)


@pytest.mark.parametrize("mode", [LoadMode.MMAP, LoadMode.MMAP_MLOCK])
def test_a_forced_mapping_that_cannot_be_is_refused(mode: LoadMode) -> None:
    """A demand for mmap fails, naming device and reason, where a device lacks it or no tensor can stay mapped."""
    with pytest.raises(PlanError, match="old0 has no mmap_support") as caught:
        negotiate(mode, [HOST, OLD], mappable={"host": 8}, filesystem="ext")
    assert ("unsupported_load_mode", "old0") == (caught.value.code, caught.value.facts["device"])
    with pytest.raises(PlanError, match="no tensor stays whole") as caught:
        negotiate(mode, [HOST, GPU], mappable={"gpu0": 8}, filesystem="ext")
    assert "unsupported_load_mode" == caught.value.code


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_does_not_stop_a_forced_mapping(kind: str) -> None:
    """mmap that was asked for is done on a network file system too."""
    decision = negotiate(LoadMode.MMAP, [HOST], mappable={"host": 8}, filesystem=kind)
    assert (LoadMode.MMAP, ()) == (decision.resolved, decision.fallbacks)


def test_mlock_locks_host_memory_alone() -> None:
    """mlock reads, and locking is attempted on host devices; memory of another kind has nothing to lock."""
    decision = negotiate(LoadMode.MLOCK, [HOST, device("host1"), GPU], mappable={}, filesystem="nfs")
    assert {"host": "mlock", "host1": "mlock", "gpu0": "none"} == modes(decision)
    assert "attempted" in decision.reasons[0].reason
    nothing = negotiate(LoadMode.MLOCK, [GPU], mappable={}, filesystem="ext")
    assert (LoadMode.MLOCK, {"gpu0": "none"}) == (nothing.resolved, modes(nothing))


def test_a_locked_mapping_locks_copies_too() -> None:
    """mmap+mlock locks mapped tensors where they are mapped and host memory where they are copied."""
    decision = negotiate(LoadMode.MMAP_MLOCK, [HOST, device("host1"), GPU], mappable={"host": 8}, filesystem="ext")
    assert {"host": "mmap+mlock", "host1": "mlock", "gpu0": "none"} == modes(decision)


@pytest.mark.parametrize("mode", LoadMode)
def test_a_device_that_gets_nothing_says_so(mode: LoadMode) -> None:
    """Whatever the mode, a device without a tensor of the model neither maps, reads nor locks."""
    devices = [HOST, device("host1")]
    decision = negotiate(mode, devices, mappable={"host": 8}, filesystem="ext", empty=["host1"])
    assert ("none", "holds no tensor of this model: nothing to map or to read") == (
        decision.reasons[1].mode.value,
        decision.reasons[1].reason,
    )
    assert "holds no tensor" not in decision.reasons[0].reason


def test_of_a_device_that_is_elsewhere_it_is_said_what_would_be() -> None:
    """A declared device of another kind maps nothing here; what is decided is the same."""
    devices = [device("tpu0", "tpu"), HOST]
    decision = negotiate(LoadMode.AUTO, devices, mappable={"tpu0": 8, "host": 8}, filesystem="ext", elsewhere=["tpu0"])
    assert {"tpu0": "mmap", "host": "mmap"} == modes(decision)
    assert ["would be" in it.reason for it in decision.reasons] == [True, False]


@pytest.mark.parametrize("mode", [LoadMode.NONE, LoadMode.DIRECT_IO])
def test_plain_and_direct_reads_copy_everywhere(mode: LoadMode) -> None:
    """none and direct_io are what every device does, whatever it could."""
    decision = negotiate(mode, [HOST, OLD], mappable={"host": 8}, filesystem="nfs")
    assert (mode, {"host": mode.value, "old0": mode.value}) == (decision.resolved, modes(decision))


def test_every_outcome_explains_itself_and_is_known_to_the_metrics() -> None:
    """For all inputs: a resolved mode that isn't AUTO, one reason per device, fallbacks from the closed set only."""
    fleets = [[HOST], [GPU], [OLD], [HOST, GPU], [HOST, OLD], []]
    for mode, fleet, held, kind in product(LoadMode, fleets, ({}, {"host": 1}, {"gpu0": 1}), ("ext", "nfs")):
        try:
            decision = negotiate(mode, fleet, mappable=held, filesystem=kind)
        except PlanError:
            assert mode.maps
            continue
        assert decision.resolved is not LoadMode.AUTO
        assert [it.name for it in fleet] == [it.device for it in decision.reasons]
        assert all(it.reason and it.mode is not LoadMode.AUTO for it in decision.reasons)
        assert set(decision.fallbacks) <= set(FALLBACKS)
        assert decision.resolved.maps == any(it.mode.maps for it in decision.reasons)


def test_a_refused_mapping_becomes_reads_unless_it_was_asked_for() -> None:
    """The kernel's refusal to map is a warning and a counted fallback under AUTO, a failure under mmap."""
    automatic = negotiate(LoadMode.AUTO, [HOST, GPU], mappable={"host": 8}, filesystem="ext")
    fallen = map_refused(automatic, "ENODEV")
    assert (LoadMode.NONE, {"host": "none", "gpu0": "none"}) == (fallen.resolved, modes(fallen))
    assert [FallbackReason.MAP_REFUSED] == [it.reason for it in fallen.fallbacks]
    assert "ENODEV" in fallen.warnings[0]
    forced = negotiate(LoadMode.MMAP, [HOST], mappable={"host": 8}, filesystem="ext")
    with pytest.raises(PlanError, match="ENODEV") as caught:
        map_refused(forced, "ENODEV")
    assert "unsupported_load_mode" == caught.value.code


def test_a_refused_lock_is_a_warning_counted_once() -> None:
    """mlock that the system refuses goes on without it: each device warns once, the load's fallback counts once."""
    decision = negotiate(LoadMode.MLOCK, [HOST, device("host1")], mappable={}, filesystem="ext")
    once = lock_refused(decision, "host", "ENOMEM")
    both = lock_refused(lock_refused(once, "host", "ENOMEM"), "host1", "ENOMEM")
    assert {"host": "none", "host1": "mlock"} == modes(once)
    assert (LoadMode.NONE, 1, 2) == (both.resolved, len(both.fallbacks), len(both.warnings))
    mapped = negotiate(LoadMode.MMAP_MLOCK, [HOST], mappable={"host": 8}, filesystem="ext")
    fallen = lock_refused(mapped, "host", "EPERM")
    assert (LoadMode.MMAP, {"host": "mmap"}) == (fallen.resolved, modes(fallen))
    assert set(both.fallbacks) | set(fallen.fallbacks) <= set(FALLBACKS)


def test_refused_direct_io_goes_through_the_page_cache() -> None:
    """Direct I/O that the file system refuses is a warning and one counted fallback, however many shards refuse."""
    decision = negotiate(LoadMode.DIRECT_IO, [HOST], mappable={}, filesystem="tmpfs")
    fallen = direct_io_refused(direct_io_refused(decision, "EINVAL"), "EINVAL")
    assert (LoadMode.NONE, 1, 1) == (fallen.resolved, len(fallen.fallbacks), len(fallen.warnings))
    assert set(fallen.fallbacks) <= set(FALLBACKS)


def test_the_wire_shape_of_a_decision() -> None:
    """A decision is `{requested, resolved, reasons: [{device, mode, reason}]}` in plain strings."""
    body = negotiate(LoadMode.NONE, [HOST], mappable={}, filesystem="ext").as_json()
    assert {
        "requested": "none",
        "resolved": "none",
        "reasons": [{"device": "host", "mode": "none", "reason": "none was asked for: read into memory of its own"}],
    } == body
