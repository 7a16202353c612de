"""Dashboards as Grafana takes them."""

import json
from typing import Any

from deploy.grafana.source.options import CUSTOM, OPTIONS
from deploy.grafana.source.panels import COLUMNS, HERE, Dashboard, Panel

SCHEMA_VERSION = 42
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def render(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana takes it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in dashboard.rows:
        x = 0
        for number, panel in enumerate(row.panels, 1):
            end = COLUMNS * number // len(row.panels)
            place = {"h": row.height, "w": end - x, "x": x, "y": y}
            panels.append(_panel(panel, len(panels) + 1, place))
            x = end
        y += row.height
    return {
        "annotations": {"list": []},
        "description": dashboard.about,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [_link()],
        "panels": panels,
        "refresh": "15s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["ggufd"],
        "templating": {"list": _variables(dashboard.devices)},
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": dashboard.title,
        "uid": f"ggufd-{dashboard.name}",
        "version": 1,
        "weekStart": "",
    }


def _link() -> dict[str, Any]:
    return {
        "asDropdown": False,
        "icon": "dashboard",
        "includeVars": True,
        "keepTime": True,
        "tags": ["ggufd"],
        "targetBlank": False,
        "title": "ggufd",
        "tooltip": "",
        "type": "dashboards",
        "url": "",
    }


def _variables(devices: bool) -> list[dict[str, Any]]:
    source = {
        "hide": 0,
        "includeAll": False,
        "label": "Data source",
        "multi": False,
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "type": "datasource",
    }
    asked = [("instance", "Daemon", "label_values(ggufd_build_info, instance)")]
    if devices:
        where = f"label_values(ggufd_device_memory_capacity_bytes{{{HERE}}}, device)"
        asked.append(("device", "Device", where))
    return [source, *(_query_variable(*one) for one in asked)]


def _query_variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "datasource": SOURCE,
        "hide": 0,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"query": query, "refId": "variable"},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "type": "query",
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    table = panel.kind == "table"
    heatmap = panel.kind == "heatmap"
    targets = []
    for ref, (expression, legend) in zip("ABCDEFGH", panel.queries, strict=False):
        targets.append(
            {
                "datasource": SOURCE,
                "editorMode": "code",
                "exemplar": panel.exemplars,
                "expr": expression,
                "format": "table" if table else "heatmap" if heatmap else "time_series",
                "instant": panel.instant,
                "legendFormat": legend,
                "range": not panel.instant,
                "refId": ref,
            }
        )
    return {
        "datasource": SOURCE,
        "description": panel.asks,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "gridPos": place,
        "id": number,
        "options": OPTIONS[panel.kind],
        "targets": targets,
        "title": panel.title,
        "type": panel.kind,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = panel.thresholds or (("green", 0.0),)
    mode = "thresholds" if panel.thresholds else "palette-classic"
    defaults: dict[str, Any] = {
        "color": {"mode": mode if panel.kind in ("stat", "bargauge") else "palette-classic"},
        "custom": CUSTOM[panel.kind],
        "mappings": [],
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": None if index == 0 else at} for index, (color, at) in enumerate(steps)],
        },
        "unit": panel.unit,
    }
    if panel.kind == "timeseries":
        stacking = {"group": "A", "mode": "normal" if panel.stacked else "none"}
        drawn = {"fillOpacity": 40 if panel.stacked else 8, "stacking": stacking}
        lines = {"thresholdsStyle": {"mode": "line"}} if panel.thresholds else {}
        defaults["custom"] = {**CUSTOM[panel.kind], **drawn, **lines}
        defaults["min"] = None if panel.title == "Planned and not yet taken" else 0
    if panel.maximum is not None:
        defaults["min"], defaults["max"] = 0, panel.maximum
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    return {key: value for key, value in defaults.items() if value not in (None, {})}


def text(dashboard: Dashboard) -> str:
    """The dashboard's file."""
    return json.dumps(render(dashboard), indent=2, ensure_ascii=False) + "\n"
