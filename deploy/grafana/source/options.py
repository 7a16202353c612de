"""How each kind of panel looks: its options, and what its fields may have beyond the common."""

from typing import Any

_REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND = {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True}
_TOOLTIP = {"mode": "multi", "sort": "desc"}
OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": _TOOLTIP},
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": _REDUCED,
        "showPercentChange": False,
        "textMode": "auto",
        "wideLayout": True,
    },
    "bargauge": {
        "displayMode": "gradient",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "maxVizHeight": 300,
        "minVizHeight": 16,
        "minVizWidth": 8,
        "namePlacement": "auto",
        "orientation": "horizontal",
        "reduceOptions": _REDUCED,
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    },
    "piechart": {
        "displayLabels": ["percent"],
        "legend": {
            "calcs": [],
            "displayMode": "table",
            "placement": "right",
            "showLegend": True,
            "values": ["value", "percent"],
        },
        "orientation": "auto",
        "pieType": "donut",
        "reduceOptions": _REDUCED,
        "sort": "desc",
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "exponent": 0.5,
            "fill": "dark-orange",
            "mode": "scheme",
            "reverse": False,
            "scale": "exponential",
            "scheme": "Oranges",
            "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
    },
    "table": {"cellHeight": "sm", "frameIndex": 0, "showHeader": True},
}
_HIDDEN = {"legend": False, "tooltip": False, "viz": False}
CUSTOM: dict[str, dict[str, Any]] = {
    "timeseries": {
        "axisPlacement": "auto",
        "drawStyle": "line",
        "hideFrom": _HIDDEN,
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "pointSize": 5,
        "scaleDistribution": {"type": "linear"},
        "showPoints": "auto",
        "spanNulls": False,
        "thresholdsStyle": {"mode": "off"},
    },
    "stat": {},
    "bargauge": {},
    "piechart": {"hideFrom": _HIDDEN},
    "heatmap": {"hideFrom": _HIDDEN, "scaleDistribution": {"type": "linear"}},
    "table": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
}
