import os
from dataclasses import fields
from pathlib import Path

import pytest

from app.errors import RequestError
from app.modelfile.limits import ReadLimits
from app.service import ServiceLimits
from app.settings import SETTINGS, Settings, cache_folder, child_environment, read_settings
from app.units import GIB


def refusal(environ: dict[str, str], flags: dict[str, str] | None = None) -> RequestError:
    """The error that settings are refused with."""
    with pytest.raises(RequestError) as caught:
        read_settings(environ, flags)
    return caught.value


def test_without_anything_said_the_defaults_hold() -> None:
    """An empty environment gives a daemon on loopback with no model roots, and the parts' own limits."""
    settings = read_settings({})
    assert ("127.0.0.1", 8090, ()) == (settings.host, settings.port, settings.model_roots)
    assert (ReadLimits(), ServiceLimits()) == (settings.read, settings.service)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default() -> None:
    """The nearer a setting was said, the more it counts."""
    assert 1 == read_settings({"GGUFD_PORT": "1"}).port
    assert 2 == read_settings({"GGUFD_PORT": "1"}, {"port": "2"}).port


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    """A variable set to nothing leaves the default."""
    assert 8090 == read_settings({"GGUFD_PORT": " "}).port


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "http"),
        ("port", "65536"),
        ("port", "-1"),
        ("port", "1" * 5000),
        ("port", "٣"),
        ("host_capacity_bytes", "lots"),
        ("host_devices", "host0"),
        ("host_devices", "gpu0=8GiB"),
        ("host_devices", "host=8GiB"),
        ("host_devices", "1000"),
        ("simulated_devices", "sim0=8GiB"),
        ("simulated_devices", "sim0:8GiB,nonsense"),
        ("load_workers", "0"),
        ("chunk_bytes", "1"),
        ("stall_seconds", "nan"),
        ("shutdown_seconds", "inf"),
        ("shutdown_seconds", "-1"),
        ("log_level", "loud"),
        ("limit_n_keys", "1.5"),
        ("model_roots", "a\0b"),
        ("model_roots", "~nobody-of-that-name/x"),
        ("host", "a..b"),
        ("host", "a" * 64),
    ],
)
def test_what_makes_no_sense_names_the_variable_or_the_flag(name: str, text: str) -> None:
    """A bad setting is one clear line that begins with where it was said."""
    variable, flag = f"GGUFD_{name.upper()}", f"--{name.replace('_', '-')}"
    by_variable, by_flag = refusal({variable: text}), refusal({}, {name: text})
    assert (variable, flag) == (by_variable.facts["field"], by_flag.facts["field"])
    assert by_variable.message.startswith(variable + ": ")
    assert "\n" not in by_flag.message


def test_a_variable_that_an_orchestrator_set_is_explained() -> None:
    """Kubernetes sets GGUFD_PORT for a service called ggufd; the error says so."""
    assert "enableServiceLinks" in refusal({"GGUFD_PORT": "tcp://10.0.0.1:8090"}).message


def test_devices_are_written_as_a_number_or_with_sizes() -> None:
    """Host devices may be counted or named; simulated ones are named, with options."""
    settings = read_settings({"GGUFD_HOST_DEVICES": "2", "GGUFD_SIMULATED_DEVICES": "sim0:8GiB; sim1:1GiB,no-events"})
    assert (("host0", None), ("host1", None)) == settings.host_devices
    assert [("sim0", 8 * GIB, True), ("sim1", GIB, False)] == [
        (spec.name, spec.memory_bytes, spec.capabilities.events) for spec in settings.simulated_devices
    ]
    named = read_settings({"GGUFD_HOST_DEVICES": "host0=8GiB, host1=1GiB"}).host_devices
    assert (("host0", 8 * GIB), ("host1", GIB)) == named


def test_roots_are_absolute() -> None:
    """Roots are separated as the system separates paths, and no longer depend on the working directory."""
    roots = read_settings({"GGUFD_MODEL_ROOTS": os.pathsep.join(["/a", "b", ""])}).model_roots
    assert (Path("/a"), Path.cwd() / "b") == roots


def test_every_field_has_a_setting_and_every_setting_a_field() -> None:
    """No limit of the reader, the service or the edge is out of reach, and no setting leads nowhere."""
    parts = {field.name: getattr(read_settings({}), field.name) for field in fields(Settings)}
    groups = {"service", "api", "read"}
    expected = {name for name in parts if name not in groups}
    expected |= {f"{group}.{field.name}" for group in groups for field in fields(parts[group])}
    assert expected == {setting.target for setting in SETTINGS}
    assert len(SETTINGS) == len({setting.name for setting in SETTINGS})


def test_the_url_is_one_that_this_machine_can_reach() -> None:
    """Listening on every address is reached through loopback; IPv6 addresses stand in brackets."""
    assert "http://127.0.0.1:8090" == read_settings({"GGUFD_HOST": "0.0.0.0"}).url
    assert "http://[::1]:8090" == read_settings({"GGUFD_HOST": "::"}).url


def test_the_cache_follows_xdg(tmp_path: Path) -> None:
    """What can be fetched again lives under XDG_CACHE_HOME, or under the home folder where that is not absolute."""
    assert tmp_path / "ggufd" == cache_folder({"XDG_CACHE_HOME": str(tmp_path)})
    assert Path.home() / ".cache" / "ggufd" == cache_folder({"XDG_CACHE_HOME": "relative"})


def test_a_child_inherits_no_settings() -> None:
    """A daemon that ggufd starts itself gets its settings from nobody else."""
    assert {"PATH": "/bin", "X": "1"} == child_environment({"X": "1"}, {"PATH": "/bin", "GGUFD_PORT": "1"})
