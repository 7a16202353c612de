"""The dashboards as files: what Grafana takes, and nothing in them that the daemon has not."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.metrics import LOAD_REASONS, LoaderCollector, Metrics
from app.service import Snapshot
from deploy.grafana.generate import DASHBOARDS as VALUES
from deploy.grafana.source.panels import FAULTS
from deploy.grafana.source.rendering import SCHEMA_VERSION, text
from tests.deploy.deployment import (
    DASHBOARDS,
    DEPLOY,
    dashboard,
    load_yaml,
    names_in,
    panel_queries,
    panels,
    rule_queries,
    rules,
)

SCHEMA_PACKAGE = "@grafana/schema@13.2.3"
TYPESCRIPT = "typescript@5.9"
EACH = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def _nobody() -> Snapshot:
    raise AssertionError("nobody is asked for a snapshot here")


def series() -> dict[str, set[str]]:
    """Every metric's family, with the names of its series."""
    registry = CollectorRegistry()
    Metrics(registry)
    found: dict[str, set[str]] = {}
    for family in [*registry.collect(), *LoaderCollector(_nobody).describe()]:
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found[family.name] = {family.name + suffix for suffix in suffixes}
    return found


def test_the_files_are_what_their_source_makes() -> None:
    """`python -m deploy.grafana.generate` would change nothing."""
    made = {f"{one.name}.json": text(one) for one in VALUES}
    assert made == {path.name: path.read_text() for path in DASHBOARDS}


def test_every_series_that_is_asked_for_exists() -> None:
    """Panels and rules name only metrics that the daemon has and series that the rules record."""
    known = set().union(*series().values()) | {rule["record"] for rule in rules("recording.yaml")}
    for query in (*panel_queries(), *rule_queries()):
        asked = names_in(query.expression)
        assert asked, query
        assert asked <= known, query


def test_every_metric_is_on_a_dashboard() -> None:
    """There is no metric that nobody looks at."""
    asked = set().union(*(names_in(query.expression) for query in panel_queries()))
    assert {family for family, names in series().items() if not names & asked} == set()


def test_every_recorded_series_is_used() -> None:
    """No rule computes what neither an alert nor a panel asks for."""
    asked = set().union(*(names_in(query.expression) for query in panel_queries()))
    asked |= set().union(*(names_in(rule["expr"]) for rule in rules("alerts.yaml")))
    assert {rule["record"] for rule in rules("recording.yaml")} <= asked


def test_the_reasons_that_count_are_codes() -> None:
    """The objectives' reasons are codes of errors, and the rules use the same ones."""
    assert set(FAULTS.split("|")) <= set(LOAD_REASONS)
    for rule in rules("recording.yaml"):
        if "error_ratio:rate" in rule["record"] and rule["record"].startswith("job:"):
            assert f'reason=~"{FAULTS}"' in rule["expr"]
            assert f'reason=~"none|{FAULTS}"' in rule["expr"]


@EACH
def test_a_dashboard_can_be_pointed_anywhere(path: Path) -> None:
    """Data source and daemon are variables, which every panel and every expression uses."""
    found = dashboard(path)
    assert ["datasource", "instance"] == [one["name"] for one in found["templating"]["list"]][:2]
    assert SCHEMA_VERSION == found["schemaVersion"]
    for panel in panels(path):
        assert "${datasource}" == panel["datasource"]["uid"]
        for target in panel["targets"]:
            of_a_fleet = "job:" in target["expr"]
            assert of_a_fleet or 'instance=~"$instance"' in target["expr"], panel["title"]
            assert '$device"' not in target["expr"] or "device" in [one["name"] for one in found["templating"]["list"]]


@EACH
def test_every_panel_says_what_it_answers(path: Path) -> None:
    """A panel has a title of its own, a description that asks something, a unit, and a legend for its series."""
    titles = [panel["title"] for panel in panels(path)]
    assert len(set(titles)) == len(titles)
    for panel in panels(path):
        assert "?" in panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["type"] == "table" or all(target["legendFormat"] for target in panel["targets"])


@EACH
def test_panels_do_not_overlap(path: Path) -> None:
    """Each panel has its place in the grid of 24 columns, and its id."""
    taken: set[tuple[int, int]] = set()
    for panel in panels(path):
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in panels(path)]
    assert len(set(ids)) == len(ids)


@EACH
def test_the_handbook_names_every_panel(path: Path) -> None:
    """deploy/README.md says of each panel what it answers, in the panel's own words."""
    handbook = (DEPLOY / "README.md").read_text()
    for panel in panels(path):
        assert f"| **{panel['title']}** | {panel['description']} |" in handbook


def test_provisioning_points_at_what_is_mounted() -> None:
    """The provisioned folder is where the compose file mounts the dashboards, and the data source is its Prometheus."""
    compose = load_yaml(DEPLOY / "compose.yaml")["services"]
    (provider,) = load_yaml(DEPLOY / "grafana/provisioning/dashboards/ggufd.yaml")["providers"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in compose["grafana"]["volumes"]
    (source,) = load_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert "http://prometheus:9090" == source["url"]
    assert "127.0.0.1:9090:9090" in compose["prometheus"]["ports"]


@pytest.mark.system
def test_a_current_grafana_knows_every_field(tmp_path: Path) -> None:
    """The dashboards satisfy the types of Grafana's own schema package: no field is unknown or of another kind."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no npm here")
    (tmp_path / "package.json").write_text('{"private": true}')
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps"]
    subprocess.run([*install, SCHEMA_PACKAGE, TYPESCRIPT], cwd=tmp_path, check=True, timeout=200)
    (tmp_path / "check.ts").write_text(PROGRAM.replace("DASHBOARDS", "\n".join(_declarations())))
    # fmt: off
    options = [
        "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler",
        "--target", "es2022",
    ]
    # fmt: on
    compiler = str(tmp_path / "node_modules/typescript/bin/tsc")
    done = subprocess.run([node, compiler, *options, "check.ts"], cwd=tmp_path, capture_output=True, text=True)
    print(done.stdout)
    assert "" == done.stdout
    assert 0 == done.returncode


# Grafana's types name strings by enumerations; a literal in JSON is the same thing to it.
KINDS = ("timeseries", "stat", "bargauge", "piechart", "heatmap", "table")
PROGRAM = (
    "import type { Dashboard, Panel } from '@grafana/schema';\n"
    + "".join(
        f"import type * as {kind} from"
        f" './node_modules/@grafana/schema/dist/types/raw/composable/{kind}/panelcfg/x/types.gen';\n"
        for kind in KINDS
    )
    + """
type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
DASHBOARDS
"""
)
FIELDS = {"timeseries": "FieldConfig", "piechart": "FieldConfig", "heatmap": "FieldConfig", "table": "FieldConfig"}


def _declarations() -> list[str]:
    found = []
    for path in DASHBOARDS:
        name = path.stem.replace("-", "_")
        found.append(f"export const {name}: Plain<Dashboard> = {json.dumps(dashboard(path))};")
        for panel in panels(path):
            kind, own = panel["type"], f"{name}_{panel['id']}"
            whole: dict[str, Any] = {key: value for key, value in panel.items() if key != "targets"}
            found.append(f"export const {own}: Plain<Panel> = {json.dumps(whole)};")
            found.append(f"export const {own}_o: Plain<{kind}.Options> = {json.dumps(panel['options'])};")
            custom = panel["fieldConfig"]["defaults"].get("custom")
            if custom is not None:
                found.append(f"export const {own}_f: Plain<{kind}.{FIELDS[kind]}> = {json.dumps(custom)};")
    return found
