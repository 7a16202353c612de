"""What devices have and models take."""

from deploy.grafana.source.panels import DEVICE, HERE, Dashboard, Panel, Row, quantile, quantiles, rate, total

MEMORY = Dashboard(
    name="placement-memory",
    title="ggufd / Placement and memory",
    about="What devices have, what models take of it, whether plans told the truth, and whether everything comes back.",
    devices=True,
    rows=[
        Row(
            panels=[
                Panel(
                    title="Fill",
                    asks="How full is each device?",
                    queries=[
                        (
                            f"{total('device_memory_allocated_bytes', 'instance, device', DEVICE)}"
                            f" / {total('device_memory_capacity_bytes', 'instance, device', DEVICE)}",
                            "{{instance}} {{device}}",
                        )
                    ],
                    unit="percentunit",
                    kind="bargauge",
                    instant=True,
                    maximum=1.0,
                    thresholds=(("green", 0.0), ("orange", 0.8), ("red", 0.95)),
                ),
                Panel(
                    title="Allocated",
                    asks="What have loads under way and resident models taken, per device?",
                    queries=[(total("device_memory_allocated_bytes", "device", DEVICE), "{{device}}")],
                    unit="bytes",
                    stacked=True,
                ),
                Panel(
                    title="Free",
                    asks="What could the next load still have, per device?",
                    queries=[(total("device_memory_free_bytes", "device", DEVICE), "{{device}}")],
                    unit="bytes",
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="Capacity",
                    asks="What does each device have?",
                    queries=[(total("device_memory_capacity_bytes", "device", DEVICE), "{{device}}")],
                    unit="bytes",
                ),
                Panel(
                    title="Planned",
                    asks="What were loads under way and resident models planned to take, per device?",
                    queries=[(total("device_memory_planned_bytes", "device", DEVICE), "{{device}}")],
                    unit="bytes",
                    stacked=True,
                ),
                Panel(
                    title="Planned and not yet taken",
                    asks="How much will the loads under way still take? When none runs, other than zero is a fault.",
                    queries=[
                        (
                            f"{total('device_memory_planned_bytes', 'device', DEVICE)}"
                            f" - {total('device_memory_allocated_bytes', 'device', DEVICE)}",
                            "{{device}}",
                        )
                    ],
                    unit="bytes",
                ),
                Panel(
                    title="Reserved",
                    asks="What is kept across loads for reuse, and is no model's?",
                    queries=[(total("device_memory_reserved_bytes", "device", DEVICE), "{{device}}")],
                    unit="bytes",
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="Plan error",
                    asks="How much more than planned do loads take, by kind of device? The gaps between tensors count.",
                    queries=[(quantile(0.95, "plan_error_ratio", "device_kind"), "{{device_kind}} p95")],
                    unit="percentunit",
                ),
                Panel(
                    title="Not given back",
                    asks="What should released models have given back and did not? Anything but zero needs a restart.",
                    queries=[(total("unload_unreleased_bytes", "instance, device", DEVICE), "{{instance}} {{device}}")],
                    unit="bytes",
                    thresholds=(("green", 0.0), ("red", 1.0)),
                ),
                Panel(
                    title="Release time",
                    asks="How long do releases take?",
                    queries=quantiles("unload_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    title="Releases",
                    asks="How many releases gave everything back, and how many did not?",
                    queries=[(rate("unload_duration_seconds_count", "outcome"), "{{outcome}}")],
                    unit="ops",
                    stacked=True,
                ),
            ]
        ),
        Row(
            panels=[
                Panel(
                    title="Resident models",
                    asks="How many models hold memory, per daemon?",
                    queries=[(total("resident_models", "instance"), "{{instance}}")],
                    unit="short",
                    stacked=True,
                ),
                Panel(
                    title="Handles",
                    asks="How many handles are there, by state? The ended ones stay readable for a while.",
                    queries=[(total("handles", "state"), "{{state}}")],
                    unit="short",
                    stacked=True,
                ),
                Panel(
                    title="Memory by model",
                    asks="Which models hold the memory? Only with the setting model_series_limit.",
                    queries=[(total("model_allocated_bytes", "model", DEVICE), "{{model}}")],
                    unit="bytes",
                    stacked=True,
                ),
                Panel(
                    title="Slowest models",
                    asks="How long did each resident model take to load? Only with the setting model_series_limit.",
                    queries=[(f"max by (model) (ggufd_model_load_duration_seconds{{{HERE}}})", "{{model}}")],
                    unit="s",
                    kind="bargauge",
                    instant=True,
                ),
                Panel(
                    title="Loads per model",
                    asks="How many times is each model in memory? Only with the setting model_series_limit.",
                    queries=[(total("model_resident", "model"), "{{model}}")],
                    unit="short",
                    kind="bargauge",
                    instant=True,
                ),
            ]
        ),
    ],
)
