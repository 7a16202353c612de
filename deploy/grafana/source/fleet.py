"""How loads go, over all daemons."""

from deploy.grafana.source.panels import (
    HERE,
    READY,
    Dashboard,
    Panel,
    Row,
    increase,
    of_loads,
    quantile,
    quantiles,
    rate,
    total,
)

FLEET = Dashboard(
    name="fleet",
    title="ggufd / Fleet",
    about="How loads go, over all daemons: how many, how long, how well, and what waits.",
    rows=[
        Row(
            height=4,
            panels=[
                Panel(
                    title="Daemons",
                    asks="How many daemons answer their scrapes?",
                    queries=[(f"count(ggufd_build_info{{{HERE}}})", "daemons")],
                    unit="short",
                    kind="stat",
                ),
                Panel(
                    title="Success",
                    asks="Which share of the loads that were not cancelled ended ready, in the range above?",
                    queries=[(f"{of_loads('ready')} / {of_loads('ready|failed')}", "ready")],
                    unit="percentunit",
                    kind="stat",
                    thresholds=(("red", 0.0), ("orange", 0.9), ("green", 0.99)),
                ),
                Panel(
                    title="Loads",
                    asks="How many loads ended in the range above?",
                    queries=[(of_loads(".*"), "loads")],
                    unit="short",
                    kind="stat",
                    decimals=0,
                ),
                Panel(
                    title="Resident models",
                    asks="How many models hold memory now?",
                    queries=[(total("resident_models"), "models")],
                    unit="short",
                    kind="stat",
                ),
                Panel(
                    title="Under way",
                    asks="How many loads run or wait now?",
                    queries=[(total("loads_in_progress"), "loads")],
                    unit="short",
                    kind="stat",
                ),
                Panel(
                    title="Longest without progress",
                    asks="While loads run: how long has the one that has waited longest for progress waited?",
                    queries=[
                        (
                            f"max((time() - ggufd_load_last_progress_timestamp_seconds{{{HERE}}})"
                            f" * on (job, instance) clamp_max("
                            f"sum by (job, instance) (ggufd_loads_in_progress{{{HERE}}}), 1))",
                            "stall",
                        )
                    ],
                    unit="s",
                    kind="stat",
                    thresholds=(("green", 0.0), ("orange", 60.0), ("red", 300.0)),
                ),
            ],
        ),
        Row(
            panels=[
                Panel(
                    title="Load time",
                    asks="How long do loads take until they are ready? The dots are single loads, with their handle.",
                    queries=quantiles("load_duration_seconds", READY),
                    unit="s",
                    exemplars=True,
                ),
                Panel(
                    title="Loads by outcome",
                    asks="How many loads end per second, and how?",
                    queries=[(rate("loads_total", "outcome"), "{{outcome}}")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    title="Failures by reason",
                    asks="Why do loads fail? The reason is the error's code, as in the answer to the client.",
                    queries=[
                        (
                            "sum by (reason) (increase(ggufd_loads_total"
                            f'{{{HERE}, outcome="failed"}}[$__rate_interval])) > 0',
                            "{{reason}}",
                        )
                    ],
                    unit="short",
                    stacked=True,
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="In progress by stage",
                    asks="In which stage are the loads that have not ended?",
                    queries=[(total("loads_in_progress", "stage"), "{{stage}}")],
                    unit="short",
                    stacked=True,
                ),
                Panel(
                    title="Queue",
                    asks="How many loads wait for a thread?",
                    queries=[(total("load_queue_length", "instance"), "{{instance}}")],
                    unit="short",
                ),
                Panel(
                    title="Wait in the queue",
                    asks="How long had loads waited when they began?",
                    queries=quantiles("load_queue_wait_seconds"),
                    unit="s",
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="Load times, all of them",
                    asks="How are the times of loads spread, and is there more than one kind of load?",
                    queries=[
                        (
                            f"sum by (le) (increase(ggufd_load_duration_seconds_bucket{{{READY}}}[$__rate_interval]))",
                            "{{le}}",
                        )
                    ],
                    unit="s",
                    kind="heatmap",
                    exemplars=True,
                ),
                Panel(
                    title="Requests",
                    asks="What do clients ask for, and what are they answered?",
                    queries=[
                        (
                            rate("http_request_duration_seconds_count", "method, route, code"),
                            "{{method}} {{route}} {{code}}",
                        )
                    ],
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Requests, p99",
                    asks="Does every route answer quickly, also while loads run? (Whoever waits for a load, waits.)",
                    queries=[(quantile(0.99, "http_request_duration_seconds", "route"), "{{route}}")],
                    unit="s",
                ),
            ]
        ),
        Row(
            height=6,
            panels=[
                Panel(
                    title="Versions",
                    asks="Which daemon runs which version?",
                    queries=[(f"sum by (instance, version, python) (ggufd_build_info{{{HERE}}})", "")],
                    unit="short",
                    kind="table",
                    instant=True,
                ),
                Panel(
                    title="Files refused",
                    asks="What was wrong with files that were refused for what their header says, in the range above?",
                    queries=[(increase("header_rejects_total", "reason"), "{{reason}}")],
                    unit="short",
                    kind="bargauge",
                    instant=True,
                ),
            ],
        ),
    ],
)
