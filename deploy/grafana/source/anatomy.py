"""Where the time of a load goes."""

from deploy.grafana.source.panels import DEVICE, HERE, READY, Dashboard, Panel, Row, increase, quantile, quantiles, rate

ANATOMY = Dashboard(
    name="load-anatomy",
    title="ggufd / Load anatomy",
    about="Where the time of a load goes: its stages, which add up to it, their pace, and what made it slower.",
    devices=True,
    rows=[
        Row(
            panels=[
                Panel(
                    title="A load's time by stage",
                    asks="Where does the time of the average load go? The stages add up to the load.",
                    queries=[
                        (
                            f"sum by (stage) (rate(ggufd_load_stage_duration_seconds_sum{{{HERE}}}[$__rate_interval]))"
                            " / on () group_left ()"
                            f" sum(rate(ggufd_load_duration_seconds_count{{{HERE}}}[$__rate_interval]))",
                            "{{stage}}",
                        )
                    ],
                    unit="s",
                    stacked=True,
                ),
                Panel(
                    title="Time by stage, in all",
                    asks="Which stage took the most of all loads' time, in the range above?",
                    queries=[(increase("load_stage_duration_seconds_sum", "stage"), "{{stage}}")],
                    unit="s",
                    kind="piechart",
                    instant=True,
                ),
                Panel(
                    title="Stage time, p95",
                    asks="Which stage makes slow loads slow?",
                    queries=[
                        (
                            quantile(0.95, "load_stage_duration_seconds", "stage", f'{HERE}, outcome="ok"'),
                            "{{stage}}",
                        )
                    ],
                    unit="s",
                    exemplars=True,
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="Load time by load mode, p95",
                    asks="Do mapped loads, copied ones and direct I/O differ?",
                    queries=[(quantile(0.95, "load_duration_seconds", "load_mode", READY), "{{load_mode}}")],
                    unit="s",
                ),
                Panel(
                    title="Load time by split mode, p95",
                    asks="Does it matter how a model is split?",
                    queries=[(quantile(0.95, "load_duration_seconds", "split_mode", READY), "{{split_mode}}")],
                    unit="s",
                ),
                Panel(
                    title="Stages that loads ended in",
                    asks="In which stage did loads fail, or were they cancelled, in the range above?",
                    queries=[
                        (
                            increase("load_stage_duration_seconds_count", "stage, outcome", f'{HERE}, outcome!="ok"'),
                            "{{stage}} {{outcome}}",
                        )
                    ],
                    unit="short",
                    kind="bargauge",
                    instant=True,
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="Pace of stages",
                    asks="How many bytes per second does a stage handle, in the median and at worst (p5)?",
                    queries=[
                        (quantile(0.5, "load_throughput_bytes_per_second", "stage"), "{{stage}} p50"),
                        (quantile(0.05, "load_throughput_bytes_per_second", "stage"), "{{stage}} p5"),
                    ],
                    unit="Bps",
                ),
                Panel(
                    title="Read from files",
                    asks="How fast are files read, and how: through the page cache, past it, or mapped?",
                    queries=[(rate("read_bytes_total", "source, io_mode"), "{{source}} {{io_mode}}")],
                    unit="Bps",
                    stacked=True,
                ),
                Panel(
                    title="Placed on devices",
                    asks="How fast do bytes reach their place, per device?",
                    queries=[(rate("transfer_bytes_total", "device", DEVICE), "{{device}}")],
                    unit="Bps",
                    stacked=True,
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="Fallbacks",
                    asks="How many loads went on in another mode than they set out with, and why, in the range above?",
                    queries=[
                        (increase("load_mode_fallbacks_total", "from, to, reason"), "{{from}} → {{to}}: {{reason}}")
                    ],
                    unit="short",
                    kind="bargauge",
                    instant=True,
                ),
                Panel(
                    title="Plans asked for",
                    asks="How many plans are asked for by themselves, and do they fit?",
                    queries=[(rate("plans_total", "outcome"), "{{outcome}}")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    title="Plan time",
                    asks="How long does a plan take?",
                    queries=quantiles("plan_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    title="Plans refused",
                    asks="Why were plans refused, in the range above?",
                    queries=[(increase("plans_total", "reason", f'{HERE}, outcome="refused"'), "{{reason}}")],
                    unit="short",
                    kind="bargauge",
                    instant=True,
                ),
            ]
        ),
    ],
)
