"""The service in Prometheus' words: counters and histograms fed by its notices, gauges read from one snapshot a scrape.

Every label set that is known beforehand starts at 0, so that `rate()` sees the first event of each kind. Where nothing
went wrong the label `reason` is `none`; otherwise it is an error's code. Devices that clients declare are all called
`declared`. Names of models are in no label, unless a number of them was switched on: the load's log line, and an
exemplar on its histogram, have the handle.
"""

from __future__ import annotations

import platform
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from app import __version__
from app.errors import CapacityError, DeviceError, FileError, codes_of
from app.loading.lifecycle import STAGES, LoadState, StageTime
from app.loading.negotiation import FALLBACKS, LoadMode
from app.loading.signals import FileRead, Placed
from app.planner.plan import SplitMode
from app.residency.claim import DECLARED
from app.residency.handles import HandleView
from app.residency.notices import (
    FellBack,
    HeaderRejected,
    LoadEnded,
    LoadStarted,
    Notice,
    PlanEnded,
    PlanOutcome,
    Unloaded,
)
from app.service import ResidentModel, Snapshot

NONE: Final = "none"
OTHERS: Final = "(others)"
"""The label `model` of all resident models beyond the limit together."""
PLAN_REASONS: Final = (
    "internal",
    "bad_request",
    "model_not_found",
    "permission_denied",
    *codes_of(FileError),
    "impossible_plan",
    "unsupported_split",
    "unsupported_load_mode",
)
"""Every code that a plan can be refused with: the request's (patterns too large together among them), the file's, its
own."""
LOAD_REASONS: Final = (*PLAN_REASONS, "device_not_loadable", *codes_of(CapacityError), *codes_of(DeviceError))
"""Every code that an accepted load can fail with. What is refused before there is a load is no load's reason."""
_READY, _FAILED, _CANCELLED = LoadState.READY.value, LoadState.FAILED.value, LoadState.CANCELLED.value
_OUTCOMES: Final = (_READY, _FAILED, _CANCELLED)
_STAGE_OUTCOMES: Final = ("ok", _FAILED, _CANCELLED)
_WITH_BYTES: Final = (LoadState.READING, LoadState.ALLOCATING, LoadState.TRANSFERRING)
_SPLIT_MODES: Final = tuple(mode for mode in SplitMode if mode is not SplitMode.ROW)  # refused before it is a load
_IO_MODES: Final = (("file", "buffered"), ("file", "direct"), ("file", "mmap"))
_UNLOADED: Final = ("released", "incomplete")
_MOMENTS: Final = (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LOAD_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800)
_BYTES_PER_SECOND: Final = tuple(base * 10**power for power in range(6, 11) for base in (1, 2.5, 5))
_RATIOS: Final = (0.0, 0.0001, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Metrics:
    """The metrics of one daemon, in the registry it is given. `observe` takes notices from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace="ggufd", registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, namespace="ggufd", registry=registry, buckets=buckets)

        self._load_seconds = histogram(
            "load_duration_seconds",
            "From a load's acceptance to ready, failed or cancelled; its stages add up to it.",
            _LOAD_SECONDS,
            "outcome",
            "load_mode",
            "split_mode",
        )
        self._stage_seconds = histogram(
            "load_stage_duration_seconds", "The stages of ended loads.", _LOAD_SECONDS, "stage", "outcome"
        )
        self._loads = counter("loads", "Loads that ended, with the code of what went wrong.", "outcome", "reason")
        self._queue_seconds = histogram("load_queue_wait_seconds", "How long started loads had waited.", _LOAD_SECONDS)
        self._read = counter("read_bytes", "Tensor bytes read from models' files.", "source", "io_mode")
        self._transferred = counter("transfer_bytes", "Bytes that reached their place on a device.", "device")
        self._throughput = histogram(
            "load_throughput_bytes_per_second", "Pace of finished stages.", _BYTES_PER_SECOND, "stage"
        )
        self._plan_seconds = histogram("plan_duration_seconds", "From a plan's request to its answer.", _MOMENTS)
        self._plans = counter(
            "plans", "Plans asked for by themselves; those of loads don't count.", "outcome", "reason"
        )
        self._plan_error = histogram(
            "plan_error_ratio", "Bytes allocated over bytes planned, less one, per load.", _RATIOS, "device_kind"
        )
        self._fallbacks = counter(
            "load_mode_fallbacks", "Loads that went on in another mode than they set out with.", "from", "to", "reason"
        )
        self._unload_seconds = histogram("unload_duration_seconds", "Releases of loaded models.", _MOMENTS, "outcome")
        self._header_rejects = counter("header_rejects", "Files refused for what their header says.", "reason")
        self._requests = histogram(
            "http_request_duration_seconds",
            "HTTP requests, to the end of the answer.",
            _MOMENTS,
            "method",
            "route",
            "code",
        )
        build = Gauge("build_info", "Always 1.", ["version", "python"], namespace="ggufd", registry=registry)
        build.labels(__version__, platform.python_version()).set(1)
        self._start_at_zero()

    def watch(self, snapshot: Callable[[], Snapshot], model_series_limit: int = 0) -> None:
        """Show the state that `snapshot` gives at every scrape; its devices are taken to be all there will be.

        With a limit, so many resident models have series of their own, for as long as they are resident.
        """
        devices = snapshot().devices
        for device in (*(one.name for one in devices), DECLARED):
            self._transferred.labels(device)
        for kind in {one.kind for one in devices} | {"simulated"}:
            self._plan_error.labels(kind)
        self._registry.register(LoaderCollector(snapshot, model_series_limit))

    def observe(self, notice: Notice) -> None:
        """Count one notice of the service."""
        match notice:
            case LoadStarted(queue_seconds):
                self._queue_seconds.observe(queue_seconds)
            case FileRead(source, io_mode, nbytes):
                self._read.labels(source, io_mode).inc(nbytes)
            case Placed(device, nbytes):
                self._transferred.labels(device).inc(nbytes)
            case FellBack(fallback):
                self._fallbacks.labels(fallback.from_mode.value, fallback.to_mode.value, fallback.reason.value).inc()
            case LoadEnded():
                self._observe_load(notice)
            case PlanEnded(outcome, reason, seconds):
                self._plans.labels(outcome.value, reason).inc()
                self._plan_seconds.observe(seconds)
            case HeaderRejected(reason):
                self._header_rejects.labels(reason).inc()
            case Unloaded(seconds, unreleased):
                self._unload_seconds.labels(_UNLOADED[bool(unreleased)]).observe(seconds)

    def expect_requests(self, answers: Iterable[tuple[str, str, int]]) -> None:
        """Let the series of these answers (method, route, status) start at 0; others begin when they first happen."""
        for method, route, status in answers:
            self._requests.labels(method, route, str(status))

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one HTTP request; `route` is its template, from the closed set of the application's."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def _observe_load(self, ended: LoadEnded) -> None:
        view = ended.view
        outcome, reason = view.state.value, NONE if view.failure is None else view.failure.code
        mode = view.load_mode.resolved or view.load_mode.requested
        exemplar = {"handle_id": view.id}
        self._loads.labels(outcome, reason).inc()
        self._load_seconds.labels(outcome, mode.value, ended.split_mode.value).observe(view.duration_seconds, exemplar)
        for stage, how in _with_outcomes(view):
            self._stage_seconds.labels(stage.stage.value, how).observe(stage.seconds, exemplar)
            if how == "ok" and stage.stage in _WITH_BYTES and stage.nbytes and stage.nanoseconds:
                self._throughput.labels(stage.stage.value).observe(stage.nbytes / stage.seconds, exemplar)
        for kind, ratio in ended.plan_errors.items():
            self._plan_error.labels(kind).observe(ratio, exemplar)

    def _start_at_zero(self) -> None:
        for outcome in _OUTCOMES:
            for load_mode in LoadMode:
                for split_mode in _SPLIT_MODES:
                    self._load_seconds.labels(outcome, load_mode.value, split_mode.value)
        for stage in STAGES:
            for outcome in _STAGE_OUTCOMES:
                self._stage_seconds.labels(stage.value, outcome)
        for stage in _WITH_BYTES:
            self._throughput.labels(stage.value)
        self._loads.labels(_READY, NONE)
        self._loads.labels(_CANCELLED, "cancelled")
        self._plans.labels(PlanOutcome.FITS.value, NONE)
        self._plans.labels(PlanOutcome.TOO_LARGE.value, NONE)
        for code in LOAD_REASONS:
            self._loads.labels(_FAILED, code)
        for code in PLAN_REASONS:
            self._plans.labels(PlanOutcome.REFUSED.value, code)
        for code in codes_of(FileError):
            self._header_rejects.labels(code)
        for source, io_mode in _IO_MODES:
            self._read.labels(source, io_mode)
        for step in FALLBACKS:
            self._fallbacks.labels(step.from_mode.value, step.to_mode.value, step.reason.value)
        for outcome in _UNLOADED:
            self._unload_seconds.labels(outcome)


class LoaderCollector(Collector):
    """The gauges: nothing is set by hand, everything is read from one snapshot at each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot], model_series_limit: int = 0) -> None:
        self._snapshot = snapshot
        self._model_series_limit = model_series_limit

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without samples, so that registering asks nobody for a snapshot."""
        yield from _families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One snapshot as gauges."""
        now = self._snapshot()
        families = _families()

        def put(name: str, value: float, *labels: str) -> None:
            families[name].add_metric(labels, value)

        for stage in STAGES:
            put("loads_in_progress", now.loads_in_progress[stage], stage.value)
        put("load_last_progress_timestamp_seconds", now.last_progress_at)
        put("load_queue_length", now.queue_length)
        for state, count in now.handles.items():
            put("handles", count, state.value)
        put("resident_models", now.resident_models)
        for device in now.devices:
            put("device_memory_capacity_bytes", device.memory_bytes, device.name)
            put("device_memory_free_bytes", device.free_bytes, device.name)
            put("device_memory_reserved_bytes", 0, device.name)  # what an arena keeps across loads: there is none
            put("device_memory_planned_bytes", now.planned_bytes.get(device.name, 0), device.name)
            put("device_memory_allocated_bytes", device.allocated_bytes, device.name)
        for name in (*(device.name for device in now.devices), DECLARED):
            put("unload_unreleased_bytes", now.unreleased_bytes.get(name, 0), name)
        if self._model_series_limit:
            for model, one in _merged(now.resident, self._model_series_limit).items():
                put("model_resident", one.count, model)
                put("model_load_duration_seconds", one.load_seconds, model)
                for name, nbytes in one.allocated.items():
                    put("model_allocated_bytes", nbytes, model, name)
        yield from (family for name, family in families.items() if self._model_series_limit or name not in _OPT_IN)


class _Residents:
    """What all resident models of one name come to."""

    def __init__(self) -> None:
        self.count = 0
        self.load_seconds = 0.0
        self.allocated: Counts[str] = Counts()

    def add(self, one: ResidentModel) -> None:
        self.count += 1
        self.load_seconds = max(self.load_seconds, one.load_seconds)
        self.allocated.update(one.allocated_bytes)


def _merged(resident: tuple[ResidentModel, ...], limit: int) -> dict[str, _Residents]:
    """The resident models by name, the first `limit` names; all others under one."""
    merged: dict[str, _Residents] = {}
    for one in resident:
        name = one.model.encode("utf-8", "backslashreplace").decode()  # a path may hold any bytes, a label not
        if name not in merged and len(merged) - (OTHERS in merged) >= limit:
            name = OTHERS
        merged.setdefault(name, _Residents()).add(one)
    return merged


_GAUGES: Final = (
    ("loads_in_progress", "Loads that have not ended, by the stage they are in.", "stage"),
    (
        "load_last_progress_timestamp_seconds",
        "Unix time of the last progress of the running load that has waited longest for some; of any if none runs.",
    ),
    ("load_queue_length", "Loads that wait for a thread."),
    ("handles", "Handles that can be read, by state.", "state"),
    ("resident_models", "Models that hold memory."),
    ("device_memory_capacity_bytes", "What a device has.", "device"),
    ("device_memory_free_bytes", "What can still be given out.", "device"),
    ("device_memory_reserved_bytes", "What is kept across loads, and is no model's.", "device"),
    ("device_memory_planned_bytes", "What loads under way and resident models were planned to take.", "device"),
    ("device_memory_allocated_bytes", "What loads under way and resident models have taken.", "device"),
    ("unload_unreleased_bytes", "What ended loads and models should have given back and did not.", "device"),
    ("model_resident", "Loads of a model that hold memory.", "model"),
    ("model_load_duration_seconds", "How long the slowest of them took.", "model"),
    ("model_allocated_bytes", "What they hold.", "model", "device"),
)
_OPT_IN: Final = frozenset({"model_resident", "model_load_duration_seconds", "model_allocated_bytes"})


def _families() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(f"ggufd_{name}", text, labels=labels) for name, text, *labels in _GAUGES}


def _with_outcomes(view: HandleView) -> Iterator[tuple[StageTime, str]]:
    """Each stage of an ended load with `ok`, but for the last one of a load that failed or was cancelled."""
    last = len(view.stages) - 1
    for number, stage in enumerate(view.stages):
        yield stage, "ok" if number < last or view.failure is None else view.state.value
