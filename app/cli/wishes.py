"""The flags that say how a model shall be spread, and the request body they mean: the same for plan and load."""

import argparse
from typing import Any, Final

from app.errors import RequestError
from app.loading.negotiation import LoadMode
from app.planner.plan import SplitMode
from app.units import parse_bytes

FILE_HELP: Final = "a GGUF file, any part of a split one, or a folder that holds one"
_WISHES: Final = (
    "devices",
    "split_mode",
    "tensor_split",
    "main_device",
    "n_gpu_layers",
    "override",
    "load_mode",
)
_CONTEXT: Final = ("n_ctx", "n_seq_max", "n_ubatch", "type_k", "type_v", "flash_attention", "swa_full")


def add_wish_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a plan request."""
    parser.add_argument(
        "--devices",
        metavar="LIST",
        help="devices in order, separated by commas: names (host0), sizes (8GiB) or named sizes (big=24GiB);"
        " sizes declare simulated devices that need not exist",
    )
    parser.add_argument("--split-mode", choices=[mode.value for mode in SplitMode], help="default: layer")
    parser.add_argument("--tensor-split", metavar="RATIOS", help="a share per device, separated by commas: 3,1")
    parser.add_argument("--main-device", metavar="NAME", help="the device of split mode none; default: the first")
    parser.add_argument(
        "--n-gpu-layers", metavar="N", type=int, help="layers on devices, counted from the output; default: all"
    )
    parser.add_argument(
        "--override",
        metavar="PATTERN=DEVICE",
        action="append",
        help="put the tensors whose name the pattern (RE2) matches on that device; may be given several times",
    )
    parser.add_argument("--load-mode", choices=[mode.value for mode in LoadMode], help="default: auto")
    _add_context_arguments(parser)


def _add_context_arguments(parser: argparse.ArgumentParser) -> None:
    context = parser.add_argument_group("context", "any of these plans the caches too; without them, weights alone")
    context.add_argument("--n-ctx", metavar="N", type=int, help="tokens; default: as many as the model was trained on")
    context.add_argument("--n-seq-max", metavar="N", type=int, help="sequences that share them; default: 1")
    context.add_argument("--n-ubatch", metavar="N", type=int, help="tokens computed at once; default: 512")
    context.add_argument("--type-k", metavar="TYPE", help="the type of cached keys (f16, q8_0, …); default: f16")
    context.add_argument("--type-v", metavar="TYPE", help="the type of cached values; default: f16")
    context.add_argument("--flash-attention", action=argparse.BooleanOptionalAction, help="default: yes")
    context.add_argument(
        "--swa-full",
        action=argparse.BooleanOptionalAction,
        help="cache whole sequences also where layers look back through a window; default: yes",
    )


def wish_body(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    """The body of the request for `model` that the flags mean. Raises RequestError naming the flag."""
    body: dict[str, Any] = {
        "model": model,
        "split_mode": arguments.split_mode,
        "devices": None if arguments.devices is None else _devices(arguments.devices),
        "tensor_split": None if arguments.tensor_split is None else _ratios(arguments.tensor_split),
        "main_device": arguments.main_device,
        "n_gpu_layers": arguments.n_gpu_layers,
        "overrides": None if arguments.override is None else [_override(text) for text in arguments.override],
        "load_mode": arguments.load_mode,
        "context": _context(arguments),
    }
    return {name: value for name, value in body.items() if value is not None}


def given_flags(arguments: argparse.Namespace) -> list[str]:
    """The flags of a plan request that were given."""
    return [f"--{name.replace('_', '-')}" for name in (*_WISHES, *_CONTEXT) if getattr(arguments, name) is not None]


def _context(arguments: argparse.Namespace) -> dict[str, Any] | None:
    given = {name: getattr(arguments, name) for name in _CONTEXT}
    return {name: value for name, value in given.items() if value is not None} or None


def _devices(text: str) -> list[str | dict[str, Any]]:
    devices: list[str | dict[str, Any]] = []
    for index, part in enumerate(part.strip() for part in text.split(",")):
        if not part:
            raise RequestError(f"--devices: entry {index + 1} of {text!r} is empty", field="devices")
        name, equals, size = part.partition("=")
        if not equals and not part[:1].isdigit():
            devices.append(part)
            continue
        try:
            memory = parse_bytes(size if equals else part)
        except ValueError as error:
            raise RequestError(f"--devices: {error}", field="devices") from error
        kind = "host" if name == "host" else "simulated"
        devices.append({"name": name if equals else f"device{index}", "kind": kind, "memory_bytes": memory})
    return devices


def _ratios(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise RequestError(f"--tensor-split: {text!r} is not a list of numbers", field="tensor_split") from error


def _override(text: str) -> dict[str, str]:
    pattern, equals, device = text.rpartition("=")  # a pattern may hold an equals sign, a device's name not
    if not equals:
        raise RequestError(f"--override: {text!r} is not of the form PATTERN=DEVICE", field="overrides")
    return {"pattern": pattern, "device": device}
