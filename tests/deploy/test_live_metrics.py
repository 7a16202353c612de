"""A real Prometheus scrapes a real daemon through the scripted mix; everything that is shipped is asked of it."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from app.loading.lifecycle import STAGES
from app.metrics import LOAD_REASONS
from tests.daemon import Daemon, running_daemon
from tests.deploy.deployment import Query, panel_queries, rule_queries, rules
from tests.deploy.mix import FLAGS, SECONDS, STUCK_FROM, STUCK_UNTIL, Mix, Told
from tests.deploy.prometheus import Prometheus, running_prometheus, tool

pytestmark = pytest.mark.system

WINDOW, SPAN = "30s", "10m"


@dataclass(frozen=True, slots=True)
class Scene:
    """After the mix: what the daemon said, and the two servers, still there."""

    told: Told
    daemon: Daemon
    prometheus: Prometheus


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The mix, watched by Prometheus."""
    tool("prometheus")
    root = tmp_path_factory.mktemp("models")
    with (
        running_daemon("--model-roots", str(root), *FLAGS) as daemon,
        running_prometheus(tmp_path_factory.mktemp("prometheus"), daemon.url.removeprefix("http://")) as prometheus,
    ):
        mix = Mix(daemon.url, root)
        wait_for_scrapes(prometheus, 2)  # so that zeros are there before anything happens
        told = mix.run()
        time.sleep(3)
        yield Scene(told, daemon, prometheus)


def wait_for_scrapes(prometheus: Prometheus, count: int) -> None:
    """Return when the daemon was scraped so many times."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if prometheus.now(f'count_over_time(up{{job="ggufd"}}[10m]) >= {count}'):
            return
        time.sleep(0.2)
    raise AssertionError("Prometheus does not scrape the daemon")


def test_the_mix_met_what_it_set_out_for(scene: Scene) -> None:
    """Loads of every kind ended, and failures of every class that a client can bring about."""
    states = [one["state"] for one in scene.told.ended]
    assert states.count("ready") > 100
    assert states.count("cancelled") >= 3
    assert {"model_not_found", "queue_full"} <= set(scene.told.refused)
    assert {
        "bad_magic",
        "missing_tensor",
        "wrong_shape",
        "unsupported_architecture",
        "unsupported_split",
        "unsupported_load_mode",
        "insufficient_memory",
        "device_failed",
    } <= scene.told.reasons
    assert scene.told.reasons & {"file_changed", "truncated"}
    assert len(scene.told.reasons) > 25


def test_prometheus_reached_the_daemon_at_every_scrape(scene: Scene) -> None:
    """Whatever loads do, a scrape is answered, and soon."""
    ((_, answered),) = scene.prometheus.over_time('up{job="ggufd"}', step=1)
    assert len(answered) > SECONDS
    assert sum(answered) >= len(answered) - 1  # the first may come before the daemon was asked at all
    assert scene.prometheus.value("quantile_over_time(0.99, scrape_duration_seconds[10m])") < 1


def test_loads_are_counted_as_they_were_told(scene: Scene) -> None:
    """Prometheus has as many loads by outcome and reason as clients were told of."""
    counted = {
        (labels["outcome"], labels["reason"]): values[0] for labels, values in scene.prometheus.now("ggufd_loads_total")
    }
    for state in ("ready", "cancelled"):
        told = sum(one["state"] == state for one in scene.told.ended)
        assert told == sum(value for (outcome, _), value in counted.items() if outcome == state)
    told_reasons = [one["error"]["code"] for one in scene.told.ended if one["state"] == "failed"]
    for code in LOAD_REASONS:
        assert counted["failed", code] == told_reasons.count(code), code


def test_rate_sees_the_first_failure_of_each_reason(scene: Scene) -> None:
    """Every series was there at 0 before: even what happened once has a rate."""
    rates = {
        labels["reason"]: values[0]
        for labels, values in scene.prometheus.now('rate(ggufd_loads_total{outcome="failed"}[10m]) > 0')
    }
    assert rates.keys() == scene.told.reasons
    first = scene.prometheus.over_time('ggufd_loads_total{outcome="failed"}', step=1)
    assert [] == [(labels["reason"], values[:3]) for labels, values in first if values[0]]


def test_stages_add_up_to_their_load(scene: Scene) -> None:
    """The stages of each load sum to its duration within 1 %, and so do those of all loads together."""
    for one in scene.told.ended:
        stages = sum(stage["seconds"] for stage in one["stages"])
        assert stages == pytest.approx(one["duration_seconds"], rel=0.01), one["id"]
    everything = scene.prometheus.value(
        "sum(ggufd_load_stage_duration_seconds_sum) / sum(ggufd_load_duration_seconds_sum)"
    )
    assert everything == pytest.approx(1, rel=0.01)


def test_a_stuck_load_shows(scene: Scene) -> None:
    """A load without progress stays in its stage, and its stall grows; when it is given up, that ends."""
    assert scene.told.stuck["state"] == "transferring"
    found = scene.prometheus.over_time("instance:ggufd_load_stall:seconds", step=1)
    longest = max(value for _, values in found for value in values)
    assert (STUCK_UNTIL - STUCK_FROM) * 0.8 < longest < STUCK_UNTIL - STUCK_FROM + 10
    under_way = sum(value for _, values in scene.prometheus.now("ggufd_loads_in_progress") for value in values)
    assert under_way == 0


def test_liveness_stayed_green(scene: Scene) -> None:
    """All through the mix, with a load stuck, the daemon was alive."""
    assert len(scene.told.alive) > SECONDS
    assert {code for code, _ in scene.told.alive} == {200}
    assert sorted(seconds for _, seconds in scene.told.alive)[int(len(scene.told.alive) * 0.95)] < 1


def test_every_stage_has_been_seen_ended(scene: Scene) -> None:
    """Each stage of the lifecycle has its count."""
    counted = scene.prometheus.now('ggufd_load_stage_duration_seconds_count{outcome="ok"} > 0')
    assert {labels["stage"] for labels, _ in counted} == {stage.value for stage in STAGES}


def test_a_slow_buckets_exemplar_leads_to_its_load(scene: Scene) -> None:
    """The exemplar that Prometheus kept for a bucket names a handle that can be asked for."""
    found = scene.prometheus.get(
        "query_exemplars",
        query='ggufd_load_duration_seconds_bucket{outcome="ready"}',
        start=scene.prometheus.started_at,
        end=time.time(),
    )
    exemplars = [one for series in found for one in series["exemplars"]]
    assert exemplars
    slowest = max(exemplars, key=lambda one: float(one["value"]))
    handle = httpx.get(f"{scene.daemon.url}/v1/handles/{slowest['labels']['handle_id']}").json()
    assert handle["duration_seconds"] == pytest.approx(float(slowest["value"]))


def test_the_log_has_a_line_for_each_load(scene: Scene) -> None:
    """Without exemplars, the log leads from a slow load to its handle, with its stages."""
    lines = {line.split("handle=")[1].split()[0]: line for line in scene.daemon.log if "load ended" in line}
    for one in scene.told.ended:
        assert f"outcome={one['state']} " in lines[one["id"]]
        assert "queued=" in lines[one["id"]]


def test_every_rule_is_healthy(scene: Scene) -> None:
    """Prometheus evaluates each shipped rule without complaint."""
    found = [rule for group in scene.prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(found) == len(rules("recording.yaml")) + len(rules("alerts.yaml"))
    assert [] == [(rule["name"], rule.get("lastError")) for rule in found if rule["health"] != "ok"]


def test_alerts_fire_for_what_happened_and_for_nothing_else(scene: Scene) -> None:
    """With their patience taken away: the stuck load and the failures fire theirs; the stuck load's clears."""
    fired = {labels["alertname"] for labels, _ in scene.prometheus.over_time('ALERTS{alertstate="firing"}', step=1)}
    assert {"LoadStuck", "LoadFailureRatio"} <= fired
    assert not fired & {"LoadP95OverTarget", "MemoryNotReleased", "QueueSaturated", "PlanErrorHigh"}
    assert [] == scene.prometheus.now('ALERTS{alertname="LoadStuck"}')


@pytest.mark.parametrize("query", list(rule_queries()), ids=lambda query: query.where)
def test_every_rule_has_data(scene: Scene, query: Query) -> None:
    """What rules compute, and what alerts compare, was a number during the mix."""
    assert any(values for _, values in scene.prometheus.over_time(query.expression))


def test_every_panel_has_data(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Each query of each panel answers with data; the report shows what a person would see."""
    table, empty = [], []
    for query in panel_queries():
        expression = query.asked(WINDOW, SPAN)
        series = scene.prometheus.now(expression) if query.instant else scene.prometheus.over_time(expression)
        shown = [(labels, values) for labels, values in series if values]
        if not shown:
            empty.append(f"{query.where}: {expression}")
            continue
        every = [value for _, values in shown for value in values]
        last = [f"{_name(labels)}={rendered(values[-1], query.unit)}" for labels, values in shown[:3]]
        table.append(
            f"{query.where:<45.45} {len(shown):>4} {rendered(min(every), query.unit):>10}"
            f" {rendered(max(every), query.unit):>10}  {', '.join(last)[:90]}"
        )
    with capsys.disabled():
        print(f"\n{'panel':<45} {'n':>4} {'min':>10} {'max':>10}  last")
        print("\n".join(table))
    assert [] == empty


def _name(labels: object) -> str:
    assert isinstance(labels, dict)
    named = [value for key, value in labels.items() if key not in ("__name__", "job", "instance")]
    return "/".join(named) or "all"


def rendered(value: float, unit: str) -> str:
    """A number as Grafana would write it, more or less."""
    if unit in ("bytes", "Bps", "s", "percentunit") and math.isfinite(value):
        if unit == "percentunit":
            return f"{value * 100:.4g} %"
        if unit == "s":
            return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
        base, steps = (1024, ("B", "KiB", "MiB", "GiB")) if unit == "bytes" else (1000, ("B/s", "kB/s", "MB/s", "GB/s"))
        power = min(3, int(math.log(abs(value), base))) if abs(value) >= 1 else 0
        return f"{value / base**power:.3g} {steps[power]}"
    return f"{value:.4g}"
