"""Two objectives and how fast they are being missed."""

from deploy.grafana.source.panels import FAULTS, HERE, READY, Dashboard, Panel, Row, increase

COUNTED = f'{HERE}, reason=~"none|{FAULTS}"'
COUNTED_BAD = f'{HERE}, reason=~"{FAULTS}"'
_ALL_COUNTED = f"sum(increase(ggufd_loads_total{{{COUNTED}}}[$__range]))"
FAILED = f"sum(increase(ggufd_loads_total{{{COUNTED_BAD}}}[$__range])) / {_ALL_COUNTED}"
IN_A_MINUTE = (
    f'sum(increase(ggufd_load_duration_seconds_bucket{{{READY}, le=~"60(\\\\.0)?"}}[$__range]))'
    f" / sum(increase(ggufd_load_duration_seconds_count{{{READY}}}[$__range]))"
)
ERROR_WINDOWS = ("5m", "30m", "1h", "6h")

SLO = Dashboard(
    name="slo",
    title="ggufd / SLO",
    about="Two objectives: 99 % of the loads that may count end ready, and 95 % of those take at most a minute.",
    rows=[
        Row(
            height=5,
            panels=[
                Panel(
                    title="Loads that ended ready",
                    asks="Which share of the loads that count ended ready, in the range above? Those count that ended"
                    " ready, or failed for a reason that lies with the daemon or its machine.",
                    queries=[
                        (
                            f"1 - {FAILED}",
                            "ready",
                        )
                    ],
                    unit="percentunit",
                    kind="stat",
                    thresholds=(("red", 0.0), ("green", 0.99)),
                    decimals=2,
                ),
                Panel(
                    title="Error budget left",
                    asks="Which share of the failures that the objective allows for the range above is left? Below"
                    " zero: it is spent.",
                    queries=[
                        (
                            f"1 - {FAILED} / 0.01",
                            "left",
                        )
                    ],
                    unit="percentunit",
                    kind="stat",
                    thresholds=(("red", 0.0), ("orange", 0.1), ("green", 0.5)),
                ),
                Panel(
                    title="Ready within a minute",
                    asks="Which share of the loads that ended ready in the range above took at most a minute?",
                    queries=[
                        (
                            IN_A_MINUTE,
                            "within a minute",
                        )
                    ],
                    unit="percentunit",
                    kind="stat",
                    thresholds=(("red", 0.0), ("green", 0.95)),
                    decimals=2,
                ),
                Panel(
                    title="Time budget left",
                    asks="Which share of the slow loads that the objective allows for the range above is left?",
                    queries=[
                        (
                            f"1 - (1 - {IN_A_MINUTE}) / 0.05",
                            "left",
                        )
                    ],
                    unit="percentunit",
                    kind="stat",
                    thresholds=(("red", 0.0), ("orange", 0.1), ("green", 0.5)),
                ),
            ],
        ),
        Row(
            panels=[
                Panel(
                    title="Burn rate of failures",
                    asks="How many times too fast is the error budget being spent, over each window? 1 lasts a month;"
                    " the alerts are at 14.4 (1h and 5m) and 6 (6h and 30m). Needs the recording rules.",
                    queries=[
                        (f"job:ggufd_load_error_ratio:rate{one} / 0.01", f"{{{{job}}}} {one}") for one in ERROR_WINDOWS
                    ],
                    unit="short",
                    thresholds=(("green", 0.0), ("orange", 6.0), ("red", 14.4)),
                ),
                Panel(
                    title="Burn rate of slowness",
                    asks="How many times too fast is the time budget being spent, over each window? Needs the recording"
                    " rules.",
                    queries=[
                        (f"job:ggufd_load_slow_ratio:rate{one} / 0.05", f"{{{{job}}}} {one}") for one in ("5m", "1h")
                    ],
                    unit="short",
                    thresholds=(("green", 0.0), ("orange", 6.0), ("red", 14.4)),
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="Failures that count",
                    asks="Which reasons spend the error budget?",
                    queries=[(increase("loads_total", "reason", COUNTED_BAD), "{{reason}}")],
                    unit="short",
                    kind="bargauge",
                    instant=True,
                ),
                Panel(
                    title="Failures that don't",
                    asks="What else fails: files that are bad, wishes that are impossible?",
                    queries=[
                        (
                            increase("loads_total", "reason", f'{HERE}, outcome="failed", reason!~"{FAULTS}"'),
                            "{{reason}}",
                        )
                    ],
                    unit="short",
                    kind="bargauge",
                    instant=True,
                ),
                Panel(
                    title="What the alerts look at",
                    asks="How near is each daemon to its alerts: share of loads that fail, p95 of load time in minutes?"
                    " Needs the recording rules.",
                    queries=[
                        (f"instance:ggufd_load_failure_ratio:rate15m{{{HERE}}}", "{{instance}} failing"),
                        (f"instance:ggufd_load_duration_seconds:p95_30m{{{HERE}}} / 60", "{{instance}} p95 in minutes"),
                    ],
                    unit="short",
                ),
                Panel(
                    title="Queue that never empties",
                    asks="How many loads waited at least, over the last ten minutes? Needs the recording rules.",
                    queries=[(f"instance:ggufd_load_queue_length:min10m{{{HERE}}}", "{{instance}}")],
                    unit="short",
                ),
            ]
        ),
    ],
)
