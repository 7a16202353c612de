"""A plan for people: what each device gets, how the tensors are cut, and why, by example."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.cli.text import printable, table
from app.units import human_bytes

_REASONS: Final = ("policy", "segmentation", "granularity", "allocation")
_MAX_EXAMPLES: Final = 4


def plan_summary(plan: Mapping[str, Any]) -> str:
    """The plan (its JSON) in about thirty lines."""
    model = plan["model"]
    parts = [
        f"{printable(model['arch'])} {printable(model['type'])}: {model['n_params'] / 1e6:,.1f} M parameters,"
        f" {human_bytes(model['n_bytes'])}; plan {plan['plan_id'][:12]}",
        device_table(plan),
        f"load mode {plan['load_mode']['resolved']} (asked for: {plan['load_mode']['requested']})\n"
        + table([(r["device"], r["mode"], printable(r["reason"], 160)) for r in plan["load_mode"]["reasons"]]),
        "tensors\n" + table(axis_rows(plan["tensors"]), right=(0, 2)),
        "for example\n" + "\n".join(_example(tensor) for tensor in examples(plan["tensors"])),
    ]
    if plan["caches"]:
        parts.insert(-1, "caches\n" + table(axis_rows(plan["caches"]), right=(0, 2)))
    if plan["warnings"]:
        parts.append("warnings\n" + "\n".join(f"  {printable(warning, 400)}" for warning in plan["warnings"]))
    return "\n\n".join(parts)


def device_table(plan: Mapping[str, Any]) -> str:
    """Bytes per device, against what is free there."""
    rows = [
        (
            printable(device["name"]),
            human_bytes(device["weights_bytes"]),
            human_bytes(device["cache_bytes"]),
            human_bytes(device["total_bytes"]),
            human_bytes(device["free_bytes"]),
            "fits" if device["total_bytes"] <= device["free_bytes"]
            else f"short of {human_bytes(device['total_bytes'] - device['free_bytes'])}",
        )
        for device in plan["devices"]
    ]  # fmt: skip
    return table(rows, header=("device", "weights", "caches", "total", "free", ""), right=(1, 2, 3, 4))


def axis_rows(tensors: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """How many tensors are cut along each axis, mirrored, or whole on a device, and their bytes in the file."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        how = _how(tensor)
        counts[how] += 1
        sizes[how] += tensor["bytes"]
    return [(str(count), how, human_bytes(sizes[how])) for how, count in counts.most_common()]


def examples(tensors: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A few tensors, one for each way of being placed, the larger ways first."""
    found: dict[str, Mapping[str, Any]] = {}
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[_how(tensor)] += 1
        found.setdefault(_how(tensor), tensor)
    return [found[how] for how, _ in counts.most_common(_MAX_EXAMPLES)]


def _how(tensor: Mapping[str, Any]) -> str:
    axis = tensor["axis"]
    if axis is None:
        return f"whole on {printable(tensor['device'])}"
    return f"cut along axis {axis}" if isinstance(axis, int) else f"{axis} on every device"


def _example(tensor: Mapping[str, Any]) -> str:
    shape = " × ".join(map(str, tensor["shape"]))
    first = f"  {printable(tensor['name'])} ({tensor['type']}, {shape}): {_how(tensor)}"
    if isinstance(tensor["axis"], int) and tensor["segments"]:
        first += f": {_shares(tensor['segments'])}"
    why = tensor["why"]
    reasons = [(f"{reason}:", printable(why[reason], 200)) for reason in _REASONS if why.get(reason)]
    return "\n".join((first, table(reasons, indent="    "))) if reasons else first


def _shares(segments: Sequence[Mapping[str, Any]]) -> str:
    """Elements per device along the axis: `288 | 288`, or `64×2 + 32 | …` where there are several runs."""
    return " | ".join(
        " + ".join(str(extent) if repeats == 1 else f"{extent}×{repeats}" for extent, repeats in device)
        for device in zip(*([(e, s["repeats"]) for e in s["extents"]] for s in segments), strict=True)
    )


def stage_table(handle: Mapping[str, Any]) -> str:
    """The stages of a load (a handle's JSON): seconds and bytes, and the total they add up to."""
    rows = [
        (stage["stage"], f"{stage['seconds']:.4f}", human_bytes(stage["bytes"]) if stage["bytes"] else "")
        for stage in handle["stages"]
    ]
    rows.append(("total", f"{handle['duration_seconds']:.4f}", ""))
    return table(rows, header=("stage", "seconds", "bytes"), right=(1, 2))
