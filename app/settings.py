"""Every setting: one table of names, units, defaults and meanings, read from the environment and from flags.

This is the only place that reads the process's environment. A setting `load_workers` is the variable
`GGUFD_LOAD_WORKERS` and the flag `--load-workers` of `ggufd serve`; a flag wins over a variable, a variable over the
default.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.api.context import ApiLimits
from app.devices.simulated_spec import SimulatedSpec
from app.errors import RequestError
from app.loading.request import MAX_LISTED_DEVICES
from app.loading.transfer import DEFAULT_CHUNK_BYTES, DEFAULT_THREADS
from app.modelfile.limits import ReadLimits
from app.planner.plan import HOST
from app.service import ServiceLimits
from app.units import KIB, parse_bytes

PREFIX: Final = "GGUFD_"
CANCEL, FINISH = "cancel", "finish"
LOG_LEVELS: Final = ("critical", "error", "warning", "info", "debug")
NamedSizes = tuple[tuple[str, int | None], ...]
Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `target` is the field of `Settings` it fills, or `group.field` of one of its parts.

    `default` is written as a person would write it; empty means none. `unit` says what the text holds.
    """

    name: str
    target: str
    unit: str
    default: str
    meaning: str
    parse: Parse

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The flag of `ggufd serve`."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the daemon was told. Sizes in bytes, times in seconds.

    `host_capacity_bytes` None: what the machine has. `host_devices` are names with capacities; None: an even share of
    the host's.
    """

    host: str
    port: int
    model_roots: tuple[Path, ...]
    host_capacity_bytes: int | None
    host_devices: NamedSizes
    simulated_devices: tuple[SimulatedSpec, ...]
    transfer_threads: int
    chunk_bytes: int
    shutdown_seconds: float
    shutdown_loads: str
    model_series_limit: int
    log_level: str
    service: ServiceLimits
    api: ApiLimits
    read: ReadLimits

    @property
    def url(self) -> str:
        """Where a daemon with these settings is reached from this machine."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def read_settings(
    environ: Mapping[str, str], flags: Mapping[str, str] | None = None, *, serving: bool = False
) -> Settings:
    """The settings that `environ` and `flags` (by setting name) give; for `serving`, the model roots must be folders.

    Raises RequestError with `field`: the variable or the flag whose text makes no sense.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    groups: dict[str, dict[str, Any]] = {"service": {}, "api": {}, "read": {}}
    for setting in SETTINGS:
        source, text = setting.variable, environ.get(setting.variable, "").strip()
        if flags is not None and setting.name in flags:
            source, text = setting.flag, flags[setting.name].strip()
        try:
            value = setting.parse(text or setting.default)
        except ValueError as error:
            raise RequestError(f"{source}: {error}{_hint(text)}", field=source) from error
        sources[setting.target] = source
        group, _, name = setting.target.rpartition(".")
        (groups[group] if group else values)[name] = value
    _check_names(values, sources)
    if serving:
        _check_roots(values["model_roots"], sources["model_roots"])
    return Settings(
        **values,
        service=ServiceLimits(**groups["service"]),
        api=ApiLimits(**groups["api"]),
        read=ReadLimits(**groups["read"]),
    )


def process_settings(flags: Mapping[str, str] | None = None, *, serving: bool = False) -> Settings:
    """`read_settings` of this process's environment."""
    return read_settings(os.environ, flags, serving=serving)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where ggufd keeps what can be fetched again, by the XDG rules."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "ggufd"


def child_environment(changes: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a daemon started from here: this one, without settings meant for another, and `changes`."""
    return {key: value for key, value in environ.items() if not key.startswith(PREFIX)} | dict(changes)


def _check_names(values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """No two devices bear one name, over all settings that make some."""
    seen = {HOST}
    names = [("host_devices", name) for name, _ in values["host_devices"]]
    names += [("simulated_devices", spec.name) for spec in values["simulated_devices"]]
    for target, name in names:
        if name in seen:
            source = sources[target]
            raise RequestError(f"{source}: two devices are named {name!r}", field=source, device=name)
        seen.add(name)


def _check_roots(roots: tuple[Path, ...], source: str) -> None:
    """Better now than at the first load."""
    for root in roots:
        try:
            why = "" if root.is_dir() else "is not a folder"
        except OSError as error:  # its name is too long, or lies where this process may not look
            why = f"cannot be a root: {error.strerror}"
        if why:
            raise RequestError(f"{source}: {str(root)!r} {why}", field=source)


def _host(text: str) -> str:
    try:
        text.encode("idna")  # as the system's resolver gets it
    except UnicodeError:
        raise ValueError(f"{text!r} cannot be the name or the address of a host") from None
    return text


def _choice(*choices: str) -> Parse:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text.lower()

    return parse


def _integer(minimum: int, maximum: int) -> Parse:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not minimum <= int(text) <= maximum:
            raise ValueError(f"{text!r} is not a whole number from {minimum} to {maximum}")
        return int(text)

    return parse


def _seconds(minimum: float, maximum: float) -> Parse:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum:
            raise ValueError(f"{text!r} is not a number of seconds from {minimum:g} to {maximum:g}")
        return value

    return parse


def _size(minimum: int = 1) -> Parse:
    def parse(text: str) -> int:
        count = parse_bytes(text)
        if count < minimum:
            raise ValueError(f"{text!r} is less than {minimum} bytes")
        return count

    return parse


def _size_or_none(text: str) -> int | None:
    return parse_bytes(text) if text else None


def _paths(text: str) -> tuple[Path, ...]:
    if "\0" in text:
        raise ValueError("a path cannot hold a zero byte")
    try:
        return tuple(Path(part).expanduser().absolute() for part in text.split(os.pathsep) if part)
    except (RuntimeError, OSError) as error:  # `~` of nobody; a relative path where the working directory is gone
        raise ValueError(f"{text!r} cannot be made absolute: {error}") from error


def _host_devices(text: str) -> NamedSizes:
    """`2` → host0 and host1 without capacities of their own; `host0=8GiB,host1=1GiB` → names with capacities."""
    if re.fullmatch(r"\d{1,4}", text, re.ASCII):
        if int(text) > MAX_LISTED_DEVICES:
            raise ValueError(f"{text} devices are more than {MAX_LISTED_DEVICES}")
        return tuple((f"{HOST}{index}", None) for index in range(int(text)))
    found: list[tuple[str, int | None]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, memory = part.partition("=")
        if not equals or not re.fullmatch(rf"{HOST}\d{{1,4}}", name, re.ASCII):
            raise ValueError(
                f"{part!r} is not of the form {HOST}0=8GiB; these devices are called {HOST}0, {HOST}1 and so on"
            )
        found.append((name, parse_bytes(memory)))
    return tuple(found)


def _simulated_devices(text: str) -> tuple[SimulatedSpec, ...]:
    try:
        return tuple(SimulatedSpec.parse(part) for part in (part.strip() for part in text.split(";")) if part)
    except RequestError as error:
        raise ValueError(error.message) from error


def _hint(text: str) -> str:
    if text.startswith("tcp://"):
        return " (Kubernetes sets such variables for a service called ggufd; enableServiceLinks: false stops that)"
    return ""


_PARTS: Final[Mapping[str, Any]] = {"service": ServiceLimits(), "api": ApiLimits(), "read": ReadLimits()}


def _setting(target: str, unit: str, parse: Parse, meaning: str, default: str | None = None) -> Setting:
    """A row of the table; without a default of its own it has the one of the part that it belongs to."""
    group, _, field = target.rpartition(".")
    name = f"limit_{field}" if group == "read" else field
    text = f"{getattr(_PARTS[group], field):.15g}" if default is None else default
    return Setting(name=name, target=target, unit=unit, default=text, meaning=meaning, parse=parse)


_COUNT: Final = _integer(1, 2**40)
# fmt: off
SETTINGS: Final[tuple[Setting, ...]] = (
    _setting("host", "address", _host,
             "Address to listen on; anything but loopback lets other machines load and release models", "127.0.0.1"),
    _setting("port", "port", _integer(0, 65535), "Port to listen on; 0 takes a free one and prints it", "8090"),
    _setting("model_roots", "folders", _paths,
             f"Folders, separated by `{os.pathsep}`, that models may be loaded from; none: no model at all", ""),
    _setting("host_capacity_bytes", "bytes", _size_or_none,
             "Memory that the device `host` may hold, with host devices that share it; none: what the machine or its"
             " control group has free", ""),
    _setting("host_devices", "devices", _host_devices,
             "More host devices: a number (2: `host0` and `host1`, which share the capacity of `host` evenly with it),"
             " or those names with capacities of their own, as in `host0=8GiB,host1=8GiB`", "0"),
    _setting("simulated_devices", "devices", _simulated_devices,
             "Devices for rehearsals, separated by `;`, as in `sim0:8GiB;sim1:8GiB,no-mmap_support,fail_write=3`", ""),
    _setting("service.load_workers", "count", _integer(1, 64), "Loads that run at a time"),
    _setting("service.queue_limit", "count", _integer(0, 100_000),
             "Loads that may wait; more are refused with 503 `queue_full`"),
    _setting("transfer_threads", "count", _integer(1, 256), "Threads that read and copy for one load",
             str(DEFAULT_THREADS)),
    _setting("chunk_bytes", "bytes", _size(64 * KIB), "Largest piece that is read at a time",
             str(DEFAULT_CHUNK_BYTES)),
    _setting("service.history_limit", "count", _integer(1, 1_000_000),
             "Handles that stay readable after they ended, about 2 KiB each; fewer where they average over 16 KiB"),
    _setting("service.release_wait_seconds", "seconds", _seconds(0, 3600),
             "How long a release waits for a load to give up before it answers with the state so far"),
    _setting("service.stall_seconds", "seconds", _seconds(1, 86_400),
             "Without progress for so long, while loads wait, the daemon is not ready"),
    _setting("service.retry_after_seconds", "seconds", _seconds(0, 3600), "What a refused client is told to wait"),
    _setting("shutdown_seconds", "seconds", _seconds(0, 3600),
             "How long a shutdown waits for loads to give up and memory to be freed", "20"),
    _setting("shutdown_loads", "policy", _choice(CANCEL, FINISH),
             "What a shutdown does with loads: `cancel` them, or let them `finish` for three quarters of its time",
             CANCEL),
    _setting("model_series_limit", "count", _integer(0, 10_000),
             "How many resident models have series of their own, with their path in a label; 0: none", "0"),
    _setting("api.max_body_bytes", "bytes", _size(), "Largest body of a request"),
    _setting("api.max_wait_seconds", "seconds", _seconds(0, 86_400),
             "Longest time that `Prefer: wait` is honoured for"),
    _setting("api.max_answers_bytes", "bytes", _size(),
             "What answers under way hold together: rows, long JSON, 3 to 6 MiB a download; else 503 `answers_full`"),
    _setting("api.max_connections", "count", _integer(1, 100_000),
             "Connections at a time, at most half of what the process may have open; who is silent longest makes room"),
    _setting("api.header_seconds", "seconds", _seconds(0.1, 3600),
             "How long a client may take for a request's header, or be silent in the midst of its body"),
    _setting("api.read_seconds", "seconds", _seconds(0.1, 86_400),
             "How long a client may read nothing of an answer that waits for it"),
    _setting("log_level", "level", _choice(*LOG_LEVELS),
             f"What is logged to standard error: {', '.join(LOG_LEVELS)}", "info"),
    _setting("read.n_keys", "count", _COUNT, "Metadata entries of one file"),
    _setting("read.n_tensors", "count", _COUNT, "Tensors of a model, over all its files"),
    _setting("read.n_shards", "count", _COUNT, "Files of one split model"),
    _setting("read.key_bytes", "bytes", _size(), "Length of one metadata key"),
    _setting("read.string_bytes", "bytes", _size(), "Length of one string"),
    _setting("read.text_bytes", "bytes", _size(), "All keys and string values of one file together"),
    _setting("read.array_elements", "count", _COUNT, "Length of one array"),
    _setting("read.array_strings", "count", _COUNT, "Strings in all arrays of one file"),
    _setting("read.built_elements", "count", _COUNT, "Numbers in all short arrays of one file"),
    _setting("read.header_bytes", "bytes", _size(), "Where the header of one file must end"),
)
# fmt: on
