"""A plan and a load for people: what each device gets, how the tensors are cut, and why."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from app.cli.text import line_width, printable, table, wrapped
from app.units import human_bytes

_REASONS: Final = ("policy", "segmentation", "granularity", "allocation")
_MAX_EXAMPLES: Final = 4
_TURNS: Final = "with each layer of a kind the order of the devices turns by one, and with it who gets the rest"


def plan_summary(plan: Mapping[str, Any], width: int | None = None) -> str:
    """The plan (its JSON) in about forty lines of at most `width` columns (None: the terminal's)."""
    width = width or line_width()
    model = plan["model"]
    parts = [
        f"{printable(model['arch'])}: {model['n_params'] / 1e6:,.1f} M parameters,"
        f" {human_bytes(model['n_bytes'])}; plan {plan['plan_id'][:12]}\n{wrapped(verdict(plan), width)}",
        device_table(plan),
        mode_table(plan["load_mode"], width),
        "tensors\n" + table(axis_rows(plan["tensors"]), right=(0, 2)),
        "for example\n" + "\n".join(_example(tensor, width) for tensor in examples(plan["tensors"])),
    ]
    if plan["caches"]:
        parts.insert(-1, "caches\n" + table(axis_rows(plan["caches"]), right=(0, 2)))
    if plan["warnings"]:
        parts.append(warning_lines(plan["warnings"], width))
    return "\n\n".join(parts)


def verdict(plan: Mapping[str, Any]) -> str:
    """Whether everything fits, and where it does not, by how much."""
    if plan["fits"]:
        return "fits"
    short = [
        f"{printable(name)} is short of {human_bytes(nbytes)}"
        for name, nbytes in plan["shortfall_bytes"].items()
        if nbytes
    ]
    return "does not fit: " + ", ".join(short)


def device_table(plan: Mapping[str, Any]) -> str:
    """Bytes per device, against what is free there."""
    rows = [
        (
            printable(device["name"]),
            human_bytes(device["weights_bytes"]),
            human_bytes(device["cache_bytes"]),
            human_bytes(device["total_bytes"]),
            human_bytes(device["free_bytes"]),
            "fits" if device["fits"] else f"short of {human_bytes(device['shortfall_bytes'])}",
        )
        for device in plan["devices"]
    ]
    return table(rows, header=("device", "weights", "caches", "total", "free", ""), right=(1, 2, 3, 4))


def mode_table(load_mode: Mapping[str, Any], width: int) -> str:
    """What the load mode came to, and each device's part in it (a plan's or a handle's `load_mode`)."""
    reasons = [(printable(one["device"]), one["mode"], printable(one["reason"], 400)) for one in load_mode["reasons"]]
    return f"load mode {load_mode['resolved']} (asked for: {load_mode['requested']})\n" + table(reasons, width=width)


def warning_lines(warnings: Iterable[str], width: int) -> str:
    """The warnings, a paragraph for each."""
    return "warnings\n" + "\n".join(
        wrapped(printable(one, 400), width, indent="  ", hanging="    ") for one in warnings
    )


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
    """A few tensors, one for each way of being placed, the larger ways first; of cut ones, one all devices share."""
    found: dict[str, Mapping[str, Any]] = {}
    counts: Counter[str] = Counter()
    for tensor in tensors:
        how = _how(tensor)
        counts[how] += 1
        if how not in found or (_leaves_out_a_device(found[how]) and not _leaves_out_a_device(tensor)):
            found[how] = tensor
    return [found[how] for how, _ in counts.most_common(_MAX_EXAMPLES)]


def tensor_lines(plan: Mapping[str, Any], width: int | None = None) -> Iterator[str]:
    """Every tensor and cache of the plan: where it goes, the elements and bytes of each device, and why."""
    width = width or line_width()
    for title in ("tensors", "caches"):
        if plan[title]:
            yield f"\nall {title} ({len(plan[title])})"
        for tensor in plan[title]:
            yield _headline(tensor)
            for line in (_device_shares(plan, tensor), printable(tensor["why"]["policy"], 400)):
                if line:
                    yield wrapped(line, width, indent="      ", hanging="        ")


def _device_shares(plan: Mapping[str, Any], tensor: Mapping[str, Any]) -> str:
    """What each device of the request gets of the tensor; nothing where it is whole on one."""
    sizes = tensor["bytes_per_device"]
    if tensor["axis"] is None:
        return human_bytes(tensor["bytes"])
    if not isinstance(tensor["axis"], int):
        return f"{human_bytes(max(sizes))} on each"
    return ", ".join(
        f"{printable(device['name'])} {share} ({human_bytes(size)})"
        for device, share, size in zip(plan["devices"], _extents(tensor["segments"]), sizes, strict=False)
    )  # the host stands last in `devices`, where it was not listed


def _how(tensor: Mapping[str, Any]) -> str:
    axis = tensor["axis"]
    if axis is None:
        return f"whole on {printable(tensor['device'])}"
    return f"cut along axis {axis}" if isinstance(axis, int) else f"{axis} on every device"


def _is_cut(tensor: Mapping[str, Any]) -> bool:
    return isinstance(tensor["axis"], int) and bool(tensor["segments"])


def _leaves_out_a_device(tensor: Mapping[str, Any]) -> bool:
    return _is_cut(tensor) and 0 in tensor["bytes_per_device"]


def _headline(tensor: Mapping[str, Any]) -> str:
    shape = " × ".join(map(str, tensor["shape"]))
    return f"  {printable(tensor['name'])} ({tensor['type']}, {shape}): {_how(tensor)}"


def _example(tensor: Mapping[str, Any], width: int) -> str:
    rows = [("elements:", " | ".join(_extents(tensor["segments"])))] if _is_cut(tensor) else []
    why = tensor["why"]
    rows += [(f"{reason}:", printable(why[reason], 400)) for reason in _REASONS if why.get(reason)]
    if _leaves_out_a_device(tensor):
        rows.append(("rotation:", _TURNS))
    return "\n".join((_headline(tensor), table(rows, indent="    ", width=width))) if rows else _headline(tensor)


def _extents(segments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Elements of each device along the axis: `288`, or `64×2 + 32` where there are several runs."""
    return [
        " + ".join(str(extent) if repeats == 1 else f"{extent}×{repeats}" for extent, repeats in device)
        for device in zip(*([(e, s["repeats"]) for e in s["extents"]] for s in segments), strict=True)
    ]


def stage_table(handle: Mapping[str, Any]) -> str:
    """The stages of a load (a handle's JSON): seconds and bytes, and the total they add up to."""
    rows = [
        (stage["stage"], f"{stage['seconds']:.4f}", human_bytes(stage["bytes"]) if stage["bytes"] else "")
        for stage in handle["stages"]
    ]
    rows.append(("total", f"{handle['duration_seconds']:.4f}", ""))
    return table(rows, header=("stage", "seconds", "bytes"), right=(1, 2))
