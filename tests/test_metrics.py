from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from app.errors import CapacityError, DeviceError, FileError, GgufdError, PlanError, codes_of
from app.loading.lifecycle import STAGES, LoadState
from app.loading.negotiation import FALLBACKS, LoadMode
from app.loading.request import DeclaredDevice, PlanRequest
from app.loading.run import World
from app.metrics import LOAD_REASONS, OTHERS, PLAN_REASONS, Metrics
from app.residency.handles import HandleView
from app.service import LoaderService, ServiceLimits
from tests.builders import t0
from tests.worlds import MIB, HeldBackend, ended, held, world

T0_2 = 312_576
DOCUMENTED = {
    "ggufd_load_duration_seconds": {"outcome", "load_mode", "split_mode"},
    "ggufd_load_stage_duration_seconds": {"stage", "outcome"},
    "ggufd_loads": {"outcome", "reason"},
    "ggufd_loads_in_progress": {"stage"},
    "ggufd_load_last_progress_timestamp_seconds": set(),
    "ggufd_load_queue_length": set(),
    "ggufd_load_queue_wait_seconds": set(),
    "ggufd_read_bytes": {"source", "io_mode"},
    "ggufd_transfer_bytes": {"device"},
    "ggufd_load_throughput_bytes_per_second": {"stage"},
    "ggufd_device_memory_capacity_bytes": {"device"},
    "ggufd_device_memory_free_bytes": {"device"},
    "ggufd_device_memory_reserved_bytes": {"device"},
    "ggufd_device_memory_planned_bytes": {"device"},
    "ggufd_device_memory_allocated_bytes": {"device"},
    "ggufd_plan_duration_seconds": set(),
    "ggufd_plans": {"outcome", "reason"},
    "ggufd_plan_error_ratio": {"device_kind"},
    "ggufd_load_mode_fallbacks": {"from", "to", "reason"},
    "ggufd_handles": {"state"},
    "ggufd_resident_models": set(),
    "ggufd_unload_duration_seconds": {"outcome"},
    "ggufd_unload_unreleased_bytes": {"device"},
    "ggufd_header_rejects": {"reason"},
    "ggufd_build_info": {"version", "python"},
}


class Watched:
    """A service with its metrics."""

    def __init__(self, place: World, limits: ServiceLimits | None = None, model_series_limit: int = 0) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.service = LoaderService(place, limits=limits, observers=[self.metrics.observe])
        self.metrics.watch(self.service.snapshot, model_series_limit)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"ggufd_{name}", labels)

    def scrape(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample by name and labels, of one scrape."""
        return {
            (sample.name.removeprefix("ggufd_"), frozenset(sample.labels.items())): sample.value
            for family in self.registry.collect()
            for sample in family.samples
        }

    def load(self, request: PlanRequest) -> HandleView:
        return ended(self.service, self.service.submit(request).id)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    t0(tmp_path / "m.gguf")
    return tmp_path


@pytest.fixture
def device() -> HeldBackend:
    return held()


@pytest.fixture
def watched(root: Path, device: HeldBackend) -> Iterator[Watched]:
    place = world(root, simulated=["tiny:1000", "copied:4MiB,no-mmap_support"], extra={"held": device})
    whole = Watched(place, ServiceLimits(load_workers=1))
    yield whole
    device.gate.set()
    assert whole.service.close(20)


REQUEST = PlanRequest(model="m.gguf", devices=("host0", "host1"))


def test_every_documented_metric_is_there_with_its_labels_from_the_start(watched: Watched) -> None:
    """A dashboard finds every series before anything has happened, and no other label."""
    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(watched.registry).decode())
        if not family.name.endswith("_created")
    }
    found = {
        name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for name, family in families.items()
    }
    requests = found.pop("ggufd_http_request_duration_seconds")

    assert found == DOCUMENTED
    assert requests == set()  # its labels are the application's routes, which it meets as they are asked for
    assert all(family.documentation for family in families.values())


def test_closed_label_sets_start_at_zero(watched: Watched) -> None:
    """rate() sees the first failure of each reason: every code that a load or a plan can end with has its series."""
    samples = watched.scrape()

    def value(name: str, **labels: str) -> float | None:
        return samples.get((name, frozenset(labels.items())))

    for code in LOAD_REASONS:
        assert value("loads_total", outcome="failed", reason=code) == 0
    for code in PLAN_REASONS:
        assert value("plans_total", outcome="refused", reason=code) == 0
    for code in ("unreachable", "method_not_allowed", "queue_full", "handle_not_found"):
        assert value("loads_total", outcome="failed", reason=code) is None
    for code in codes_of(FileError):
        assert value("header_rejects_total", reason=code) == 0
    for step in FALLBACKS:
        labels = {"from": step.from_mode.value, "to": step.to_mode.value, "reason": step.reason.value}
        assert value("load_mode_fallbacks_total", **labels) == 0
    for state in LoadState:
        assert value("handles", state=state.value) == 0
    for stage in STAGES:
        assert value("loads_in_progress", stage=stage.value) == 0
    for name in ("host", "host0", "tiny", "declared"):
        assert value("transfer_bytes_total", device=name) == 0
        assert value("unload_unreleased_bytes", device=name) == 0
    for mode in ("buffered", "direct", "mmap"):
        assert value("read_bytes_total", source="file", io_mode=mode) == 0


def test_every_class_of_error_that_a_load_raises_is_among_the_reasons() -> None:
    """Files, plans, devices and memory: all their codes, each of which is a code."""
    for kind in (FileError, PlanError, CapacityError, DeviceError):
        assert set(codes_of(kind)) <= set(LOAD_REASONS)
    assert set(PLAN_REASONS) < set(LOAD_REASONS) < set(codes_of(GgufdError))
    assert len(LOAD_REASONS) == len(set(LOAD_REASONS))


def test_the_codes_cover_the_whole_tree() -> None:
    """A class below another brings its codes along, and the base's own is there too."""
    assert {"internal", "bad_magic", "missing_tensor", "queue_full"} <= set(codes_of(GgufdError))
    assert "missing_tensor" in codes_of(FileError)
    assert "queue_full" not in codes_of(FileError)


def test_a_load_is_counted_timed_and_measured(watched: Watched) -> None:
    """Outcome, duration, every stage, the queue, the bytes and their pace."""
    view = watched.load(REQUEST)

    assert watched.value("loads_total", outcome="ready", reason="none") == 1
    labels = {"outcome": "ready", "load_mode": "mmap", "split_mode": "layer"}
    assert watched.value("load_duration_seconds_count", **labels) == 1
    assert watched.value("load_duration_seconds_sum", **labels) == pytest.approx(view.duration_seconds)
    stages = [watched.value("load_stage_duration_seconds_sum", stage=stage.value, outcome="ok") for stage in STAGES]
    assert sum(value or 0 for value in stages) == pytest.approx(view.duration_seconds)
    assert watched.value("load_queue_wait_seconds_count") == 1
    assert watched.value("load_throughput_bytes_per_second_count", stage="transferring") == 1
    placed = [watched.value("transfer_bytes_total", device=name) for name in ("host", "host0", "host1")]
    assert sum(value or 0 for value in placed) == T0_2
    assert watched.value("plan_error_ratio_count", device_kind="host") == 1


def test_state_is_read_at_the_scrape(watched: Watched) -> None:
    """Handles, residents and memory follow the service without anybody setting a gauge."""
    view = watched.load(REQUEST)

    assert watched.value("handles", state="ready") == 1
    assert watched.value("resident_models") == 1
    for name, nbytes in view.allocated_bytes.items():
        assert watched.value("device_memory_allocated_bytes", device=name) == nbytes
        assert watched.value("device_memory_planned_bytes", device=name) == nbytes
    assert watched.value("device_memory_capacity_bytes", device="host0") == 64 * MIB
    free = watched.value("device_memory_free_bytes", device="host0")
    assert free == 64 * MIB - view.allocated_bytes["host0"]
    watched.service.release(view.id)
    assert watched.value("handles", state="released") == 1
    assert watched.value("device_memory_allocated_bytes", device="host0") == 0
    assert watched.value("device_memory_planned_bytes", device="host0") == 0
    assert watched.value("device_memory_reserved_bytes", device="host0") == 0


def test_c55_a_load_under_way_shows_in_its_stage(watched: Watched, device: HeldBackend) -> None:
    """While a load runs the scrape works: one in progress, one in the queue, and when it last got on."""
    running = watched.service.submit(PlanRequest(model="m.gguf", devices=("held",)))
    assert device.reached.wait(10)
    queued = watched.service.submit(REQUEST)

    assert watched.value("loads_in_progress", stage="allocating") == 1
    assert watched.value("loads_in_progress", stage="queued") == 1
    assert watched.value("load_queue_length") == 1
    progress = watched.value("load_last_progress_timestamp_seconds")
    assert progress is not None
    assert progress >= running.created_at
    device.gate.set()
    ended(watched.service, running.id)
    ended(watched.service, queued.id)
    assert watched.value("loads_in_progress", stage="allocating") == 0


def test_a_failure_is_counted_with_its_code_and_stage(watched: Watched, root: Path) -> None:
    """The reason is the error's code; the stage that failed is timed as failed."""
    (root / "bad.gguf").write_bytes(b"GGUX" + bytes(64))
    watched.load(PlanRequest(model="bad.gguf"))
    watched.load(PlanRequest(model="m.gguf", devices=("tiny",)))

    assert watched.value("loads_total", outcome="failed", reason="bad_magic") == 1
    assert watched.value("header_rejects_total", reason="bad_magic") == 1
    assert watched.value("load_stage_duration_seconds_count", stage="reading", outcome="failed") == 1
    assert watched.value("loads_total", outcome="failed", reason="insufficient_memory") == 1
    assert watched.value("load_stage_duration_seconds_count", stage="allocating", outcome="failed") == 1
    assert watched.value("load_throughput_bytes_per_second_count", stage="allocating") == 0


def test_a_cancelled_load_is_counted_as_such(watched: Watched, device: HeldBackend) -> None:
    """Cancelled is an outcome of its own, and no failure."""
    watched.service.submit(PlanRequest(model="m.gguf", devices=("held",)))
    assert device.reached.wait(10)
    queued = watched.service.submit(REQUEST)
    watched.service.release(queued.id)

    assert watched.value("loads_total", outcome="cancelled", reason="cancelled") == 1
    assert watched.value("load_stage_duration_seconds_count", stage="queued", outcome="cancelled") == 1


def test_plans_are_counted_by_what_came_of_them(watched: Watched) -> None:
    """One that fits, one that needs more than there is, one that is refused; loads don't count as plans."""
    watched.load(REQUEST)
    watched.service.plan(REQUEST)
    watched.service.plan(PlanRequest(model="m.gguf", devices=("tiny",)))
    with pytest.raises(GgufdError):
        watched.service.plan(PlanRequest(model="missing.gguf"))

    assert watched.value("plans_total", outcome="fits", reason="none") == 1
    assert watched.value("plans_total", outcome="too_large", reason="none") == 1
    assert watched.value("plans_total", outcome="refused", reason="model_not_found") == 1
    assert watched.value("plan_duration_seconds_count") == 3


def test_fallbacks_are_counted(watched: Watched) -> None:
    """Auto that could not map counts one step from mmap to none, with its reason."""
    watched.load(PlanRequest(model="m.gguf", devices=("copied",)))

    labels = {"from": "mmap", "to": "none", "reason": "device_without_mmap"}
    assert watched.value("load_mode_fallbacks_total", **labels) == 1
    assert watched.value("read_bytes_total", source="file", io_mode="buffered") == T0_2


def test_a_release_is_timed_and_what_stays_is_shown(watched: Watched) -> None:
    """A release that gave everything back counts as released, with nothing unreleased."""
    view = watched.load(REQUEST)
    watched.service.release(view.id)
    watched.service.close(20)

    assert watched.value("unload_duration_seconds_count", outcome="released") == 1
    assert watched.value("unload_duration_seconds_count", outcome="incomplete") == 0
    assert watched.value("unload_unreleased_bytes", device="host0") == 0


def test_bytes_that_do_not_come_back_stay_visible(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that won't go shows as unreleased bytes of its device, and the release as incomplete."""
    monkeypatch.setattr("app.devices.mapped.MappedBuffer.free", lambda self: 0)
    view = watched.load(REQUEST)
    released = watched.service.release(view.id)
    watched.service.close(20)

    assert released.released_bytes == 0
    assert watched.value("unload_duration_seconds_count", outcome="incomplete") == 1
    assert watched.value("unload_unreleased_bytes", device="host0") == view.allocated_bytes["host0"]


def test_devices_that_clients_declare_make_no_series_of_their_own(watched: Watched) -> None:
    """Whatever a client calls its device, the label is `declared`."""
    declared = DeclaredDevice(name='evil"name', kind="simulated", memory_bytes=MIB)
    watched.load(PlanRequest(model="m.gguf", devices=(declared,)))
    text = generate_latest(watched.registry).decode()

    assert "evil" not in text
    assert watched.value("transfer_bytes_total", device="declared") == T0_2 - 8192


def test_models_are_in_no_label_and_the_handle_is_in_an_exemplar(watched: Watched) -> None:
    """A slow bucket leads to its load without a series per model."""
    view = watched.load(REQUEST)

    assert "m.gguf" not in generate_latest(watched.registry).decode()
    assert f'handle_id="{view.id}"' in generate_openmetrics(watched.registry).decode()  # type: ignore[no-untyped-call]


def test_requests_are_counted_by_method_route_and_status(watched: Watched) -> None:
    """The route is the template; the status is the code as text."""
    watched.metrics.observe_request("GET", "/v1/handles/{handle_id}", 404, 0.002)

    labels = {"method": "GET", "route": "/v1/handles/{handle_id}", "code": "404"}
    assert watched.value("http_request_duration_seconds_count", **labels) == 1


def test_scraping_changes_nothing(watched: Watched) -> None:
    """C55: a scrape loads nothing and makes no handle."""
    generate_latest(watched.registry)

    assert watched.service.handles() == ([], 0)
    assert watched.value("loads_in_progress", stage="queued") == 0


def test_load_buckets_run_from_a_hundredth_to_half_an_hour(watched: Watched) -> None:
    """0.01 s to 1800 s, as documented, for loads and stages."""
    text = generate_latest(watched.registry).decode()
    for name in ("ggufd_load_duration_seconds_bucket", "ggufd_load_stage_duration_seconds_bucket"):
        lines = [line for line in text.splitlines() if line.startswith(name)]
        edges = {line.split('le="')[1].split('"')[0] for line in lines}
        assert {"0.01", "1800.0", "+Inf"} <= edges
        assert min(float(edge) for edge in edges) == 0.01
        assert sorted(float(edge) for edge in edges)[-2] == 1800


def test_a_mode_that_was_never_resolved_is_shown_as_requested(watched: Watched) -> None:
    """A load that failed before its negotiation counts under the mode it asked for."""
    watched.load(PlanRequest(model="m.gguf", devices=("copied",), load_mode=LoadMode.MMAP))

    labels = {"outcome": "failed", "load_mode": "mmap", "split_mode": "layer"}
    assert watched.value("load_duration_seconds_count", **labels) == 1
    assert watched.value("loads_total", outcome="failed", reason="unsupported_load_mode") == 1


def test_series_of_models_are_opt_in_capped_and_end_with_the_release(root: Path) -> None:
    """Switched on, so many models have series of their own, the rest share one, and a release ends a model's."""
    for name in ("a", "b", "c"):
        t0(root / f"{name}.gguf")
    watched = Watched(world(root), model_series_limit=2)
    held = [watched.load(PlanRequest(model=f"{name}.gguf", devices=("host0",))) for name in ("a", "b", "c", "a")]

    def resident() -> dict[str, float]:
        found = watched.scrape().items()
        return {dict(labels)["model"]: value for (name, labels), value in found if name == "model_resident"}

    assert resident() == {"a.gguf": 2, "b.gguf": 1, OTHERS: 1}
    assert watched.value("model_allocated_bytes", model="a.gguf", device="host0") == (
        held[0].allocated_bytes["host0"] + held[3].allocated_bytes["host0"]
    )
    slowest = max(held[0].duration_seconds, held[3].duration_seconds)
    assert watched.value("model_load_duration_seconds", model="a.gguf") == pytest.approx(slowest)
    watched.service.release(held[1].id)
    assert resident() == {"a.gguf": 2, "c.gguf": 1}
    assert watched.service.close(20)


def test_series_of_models_are_off_unless_asked_for(watched: Watched) -> None:
    """Without the setting no family has a label `model`."""
    watched.load(REQUEST)

    assert "ggufd_model_" not in generate_latest(watched.registry).decode()


def test_a_models_path_of_any_bytes_makes_a_label(root: Path) -> None:
    """A path that is no text does not break the scrape."""
    name = b"m\xff\n.gguf".decode("utf-8", "surrogateescape")
    t0(root / name)
    watched = Watched(world(root), model_series_limit=1)
    watched.load(PlanRequest(model=name, devices=("host0",)))

    assert "ggufd_model_resident{" in generate_latest(watched.registry).decode()
    assert watched.service.close(20)
