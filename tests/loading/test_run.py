import os
import threading
from pathlib import Path

import pytest

from app.devices.host import HostBackend
from app.errors import (
    CancelledLoadError,
    CapacityError,
    DeviceError,
    FileError,
    GgufdError,
    MetadataError,
    NotFoundError,
    PlanError,
)
from app.loading.lifecycle import EventKind, LoadEvent
from app.loading.negotiation import LoadMode
from app.loading.request import DeclaredDevice
from app.loading.run import check_loadable, check_path, locate, prepare
from app.loading.signals import Allocated, Freed, Placed, Signal
from app.planner.plan import Override, SplitMode
from tests.builders import t0
from tests.loading.running import T0_2, Log, assert_whole, load
from tests.worlds import MIB, allocated, held, request, world


@pytest.fixture
def root(tmp_path: Path) -> Path:
    t0(tmp_path / "m.gguf")
    return tmp_path


@pytest.mark.parametrize("split_mode", [SplitMode.NONE, SplitMode.LAYER, SplitMode.TENSOR])
@pytest.mark.parametrize("load_mode", [LoadMode.AUTO, LoadMode.NONE, LoadMode.MMAP, LoadMode.DIRECT_IO])
def test_a_load_ends_with_every_tensor_in_place(root: Path, split_mode: SplitMode, load_mode: LoadMode) -> None:
    """Whatever the split and however the file is read, the devices' slices join to the file's tensors."""
    place, log = world(root), Log()
    loaded = load(place, request(split_mode=split_mode, load_mode=load_mode), log)

    assert_whole(loaded)
    assert log.events == ["read", "planned", "negotiated", "allocated", "moved"]
    planned = {device: nbytes for device, nbytes in loaded.prepared.planned_bytes.items() if nbytes}
    assert log.bytes_of(Placed) == planned == log.bytes_of(Allocated) == allocated(place)
    loaded.free()
    assert allocated(place) == {}
    assert log.bytes_of(Freed) == log.bytes_of(Allocated)


def test_freeing_twice_frees_once(root: Path) -> None:
    """A second release finds nothing to give back."""
    log = Log()
    loaded = load(world(root), request(), log)
    loaded.free()
    before = len(log.signals)
    loaded.free()

    assert len(log.signals) == before


def test_a_plan_has_no_side_effect(root: Path) -> None:
    """Preparing allocates nothing and keeps no descriptor open."""
    place = world(root)
    prepare(request(), place)
    before = os.listdir("/proc/self/fd")
    prepared = prepare(request(), place)

    assert prepared.plan.fits
    assert allocated(place) == {}
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_plans_answer_has_the_documented_fields(root: Path) -> None:
    """The JSON of a plan: its id, the model's facts, the load mode, the devices, the tensors."""
    answer = prepare(request(), world(root)).as_json()

    assert set(answer) >= {
        "plan_id",
        "fits",
        "shortfall_bytes",
        "model",
        "load_mode",
        "devices",
        "tensors",
        "caches",
        "warnings",
        "audit",
    }
    assert answer["model"]["arch"] == "llama"
    assert answer["load_mode"]["resolved"] == "mmap"
    assert {reason["device"] for reason in answer["load_mode"]["reasons"]} == {"host", "host0", "host1"}


def test_a_plan_id_follows_file_and_request(root: Path) -> None:
    """The same file by another path has the same id; another request, or the file written again, has another."""
    place = world(root)
    (root / "link.gguf").symlink_to("m.gguf")
    first = prepare(request(), place).plan_id

    assert (
        first == prepare(request(model="./m.gguf"), place).plan_id == prepare(request(model="link.gguf"), place).plan_id
    )
    assert first != prepare(request(n_gpu_layers=1), place).plan_id
    t0(root / "m.gguf")
    assert first != prepare(request(), place).plan_id


def test_a_plan_larger_than_its_devices_is_an_answer(root: Path) -> None:
    """Planning says what is missing instead of failing."""
    small = DeclaredDevice(name="small", kind="opencl", memory_bytes=MIB, free_bytes=1000)
    answer = prepare(request(devices=(small,)), world(root)).as_json()

    assert answer["fits"] is False
    assert answer["shortfall_bytes"] == {"small": T0_2 - 8192 - 1000, "host": 0}


def test_a_load_larger_than_its_devices_is_refused_before_anything_is_allocated(root: Path) -> None:
    """Every short device is named with what it needs and has, and no device was asked."""
    place, log = world(root, simulated=["a:100000", "b:8000"], hosts=0), Log()
    with pytest.raises(CapacityError) as caught:
        load(place, request(tensor_split=(1.0, 1.0)), log)

    short = caught.value.facts["devices"]
    assert isinstance(short, list)
    assert sorted(short, key=str) == [
        {"device": "a", "needed_bytes": 295_936, "free_bytes": 100_000},
        {"device": "b", "needed_bytes": 8_448, "free_bytes": 8_000},
    ]
    assert log.bytes_of(Allocated) == {}
    assert log.events == ["read", "planned", "negotiated"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_failing_allocation_gives_everything_back(root: Path, number: int) -> None:
    """All or nothing: what was allocated before the failure is freed."""
    place = world(root, simulated=[f"a:4MiB,max_allocation=170000,fail_allocation={number},no-mmap_support"], hosts=0)
    log = Log()
    with pytest.raises(DeviceError, match="as asked"):
        load(place, request(), log)

    assert allocated(place) == {}
    assert log.bytes_of(Freed) == log.bytes_of(Allocated)


@pytest.mark.parametrize("failure", ["fail_write=1", "fail_write=3", "fail_after=100000"])
def test_a_failing_write_gives_everything_back(root: Path, failure: str) -> None:
    """A device that fails in the middle of the transfer ends the load with its own error, and nothing stays."""
    place = world(root, simulated=[f"a:4MiB,{failure},no-mmap_support"], hosts=0)
    with pytest.raises(DeviceError) as caught:
        load(place, request())

    assert caught.value.facts["device"] == "a"
    assert allocated(place) == {}


@pytest.mark.parametrize("at", [EventKind.READ, EventKind.NEGOTIATED, EventKind.ALLOCATED, EventKind.MOVED])
def test_a_stop_in_any_stage_ends_the_load_and_frees_everything(root: Path, at: EventKind) -> None:
    """Cancelling works wherever the load is."""
    stop, place = threading.Event(), world(root)

    def react(signal: Signal) -> None:
        if isinstance(signal, LoadEvent) and signal.kind is at:
            stop.set()

    with pytest.raises(CancelledLoadError):
        load(place, request(load_mode=LoadMode.NONE), Log(react), stop)

    assert allocated(place) == {}


@pytest.mark.parametrize("load_mode", [LoadMode.NONE, LoadMode.MMAP])
def test_a_file_that_changes_before_the_end_fails_the_load(root: Path, load_mode: LoadMode) -> None:
    """Verification looks at the identity again: a model is what was planned, or it is no model."""
    place = world(root)

    def react(signal: Signal) -> None:
        if isinstance(signal, LoadEvent) and signal.kind is EventKind.MOVED:
            os.utime(root / "m.gguf", ns=(1, 1))

    with pytest.raises(FileError) as caught:
        load(place, request(load_mode=load_mode), Log(react))

    assert caught.value.code == "file_changed"
    assert allocated(place) == {}


def test_a_file_cut_short_during_the_load_fails_it(root: Path) -> None:
    """Bytes that are gone are an error, never zeros and never a signal."""
    place = world(root)

    def react(signal: Signal) -> None:
        if isinstance(signal, LoadEvent) and signal.kind is EventKind.ALLOCATED:
            os.truncate(root / "m.gguf", 4096)

    with pytest.raises(FileError) as caught:
        load(place, request(load_mode=LoadMode.NONE), Log(react))

    assert caught.value.code in ("file_changed", "truncated")
    assert allocated(place) == {}


def test_a_declared_simulated_device_lives_for_one_load(root: Path) -> None:
    """It takes the load's bytes, is nobody else's, and its memory is the request's."""
    wish = request(devices=(DeclaredDevice(name="mine", kind="simulated", memory_bytes=MIB),))
    place = world(root)
    loaded = load(place, wish)

    assert loaded.prepared.planned_bytes == {"mine": T0_2 - 8192, "host": 8192}
    assert allocated(place) == {"host": 8192}
    loaded.free()


@pytest.mark.parametrize("kind", ["opencl", "host"])
def test_a_declared_device_of_any_other_kind_can_only_be_planned_on(root: Path, kind: str) -> None:
    """What stands for a device elsewhere cannot hold bytes here."""
    wish = request(devices=(DeclaredDevice(name="host" if kind == "host" else "far", kind=kind, memory_bytes=MIB),))

    assert prepare(wish, world(root)).plan.fits
    with pytest.raises(PlanError) as caught:
        check_loadable(wish)
    assert caught.value.code == "device_not_loadable"


def test_c30_overrides_and_layers_reach_the_plan(root: Path) -> None:
    """What was asked for is what is planned: no layers offloaded, or one tensor on the host."""
    place = world(root)
    everything_home = prepare(request(n_gpu_layers=0), place)
    one_home = prepare(request(overrides=(Override(pattern=r"blk\.1\.ffn_up", device="host"),)), place)

    assert everything_home.planned_bytes["host"] == T0_2
    assert one_home.planned_bytes["host"] == 8192 + 64 * 128 * 4


@pytest.mark.parametrize("model", ["missing.gguf", "../m.gguf", "/etc/passwd"])
def test_a_model_that_is_not_under_the_roots_is_not_there(root: Path, model: str) -> None:
    """Missing and outside get the same answer."""
    (root / "inner").mkdir()
    place = world(root / "inner")
    with pytest.raises(NotFoundError) as caught:
        check_path(model, place.roots)
    assert caught.value.code == "model_not_found"
    with pytest.raises(NotFoundError):
        load(place, request(model=model))


def test_a_path_is_looked_for_under_every_root(tmp_path: Path) -> None:
    """Relative paths name a file under the first root that has it; absolute ones are taken as they are."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    t0(two / "m.gguf")

    assert locate("m.gguf", (one, two)) == two / "m.gguf"
    assert locate("x.gguf", (one, two)) == one / "x.gguf"
    assert locate("/a/m.gguf", (one, two)) == Path("/a/m.gguf")
    assert locate("m.gguf", None) == Path("m.gguf")
    with pytest.raises(NotFoundError):
        locate("m.gguf", ())


def test_a_path_is_judged_without_reading_it(root: Path) -> None:
    """A FIFO is refused at once, a folder may be a model, a file is fine whatever is in it."""
    os.mkfifo(root / "fifo.gguf")
    (root / "folder").mkdir()
    (root / "nonsense.gguf").write_bytes(b"nonsense")

    check_path("folder", (root,))
    check_path("nonsense.gguf", (root,))
    with pytest.raises(FileError) as caught:
        check_path("fifo.gguf", (root,))
    assert caught.value.code == "not_regular_file"


def test_a_bad_file_fails_while_it_is_read(root: Path) -> None:
    """The header's fault comes before any plan."""
    (root / "bad.gguf").write_bytes(b"GGML" + bytes(100))
    log = Log()
    with pytest.raises(FileError) as caught:
        load(world(root), request(model="bad.gguf"), log)

    assert caught.value.code == "bad_magic"
    assert log.events == []


def test_a_model_without_a_needed_tensor_fails_while_it_is_planned(root: Path) -> None:
    """The tensor is named, and nothing was allocated."""
    t0(root / "less.gguf", drop=("blk.1.ffn_norm.weight",))
    log = Log()
    with pytest.raises(MetadataError) as caught:
        load(world(root), request(model="less.gguf"), log)

    assert caught.value.code == "missing_tensor"
    assert log.events == ["read"]


def test_two_loads_that_fit_alone_do_not_both_fit(root: Path) -> None:
    """The capacity is enforced when memory is taken, not only when it is planned."""
    device = held()
    tight = HostBackend("tight", 400_000)
    device.inner = tight
    place = world(root, extra={"tight": device}, hosts=0)
    outcome: list[GgufdError] = []

    def second() -> None:
        try:
            load(place, request(devices=("tight",), load_mode=LoadMode.NONE))
        except GgufdError as error:
            outcome.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    assert device.reached.wait(10)
    first = tight.allocate(200_000, 200_000)
    device.gate.set()
    thread.join(10)

    assert isinstance(outcome[0], CapacityError)
    first.free()
    assert allocated(place) == {}


def test_what_a_buffer_fails_to_free_is_reported_and_does_not_stop_the_rest(root: Path) -> None:
    """A device that fails at the very end leaves its own bytes accounted, and no others."""
    log = Log()
    place = world(root)
    loaded = load(place, request(load_mode=LoadMode.NONE), log)
    broken = next(spec for spec in loaded.layout.buffers if spec.device == "host0")
    buffer = loaded.buffers[broken.id]
    honest = buffer.free

    def fail() -> int:
        raise DeviceError("it broke", device="host0", operation="free")

    buffer.free = fail  # type: ignore[method-assign]
    loaded.free()

    assert allocated(place) == {"host0": broken.accounted_bytes}
    assert "host0" not in log.bytes_of(Freed)
    honest()


def test_plan_errors_tell_padding(root: Path) -> None:
    """What alignment adds to the planned bytes shows per kind of device; a mapping adds nothing."""
    place = world(root)
    mapped, copied = load(place, request()), load(place, request(load_mode=LoadMode.NONE))

    assert mapped.plan_errors() == {"host": 0.0}
    assert 0 <= copied.plan_errors()["host"] < 0.01
    mapped.free()
    copied.free()
