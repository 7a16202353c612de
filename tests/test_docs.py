"""README.md keeps up with the code, and its tour works."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from app.api.app import create_app
from app.api.bodies import PlanBody
from app.api.problems import TITLES, all_codes
from app.api.views import handle_json
from app.cli.commands import COMMANDS
from app.cli.sample import write_small_model
from app.devices.simulated_spec import OPTIONS
from app.loading.request import PlanRequest
from app.metrics import LoaderCollector, Metrics
from app.service import LoaderService, Snapshot
from app.settings import SETTINGS, Setting
from tests.daemon import running_daemon
from tests.worlds import ended, world

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
LINES = README.splitlines()
TOUR_URL = "http://127.0.0.1:8090"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_its_row(setting: Setting) -> None:
    """The table of settings has each variable, flag, unit, default and meaning, word for word."""
    default = f"`{setting.default}`" if setting.default else "none"
    assert f"| `{setting.variable}` | `{setting.flag}` | {setting.unit} | {default} | {setting.meaning} |" in LINES


@pytest.mark.parametrize("code", all_codes())
def test_every_error_code_has_its_row(code: str) -> None:
    """The table of errors has each code with its status and its meaning."""
    assert f"| `{code}` | {all_codes()[code]} | {TITLES[code]} |" in LINES


def test_no_row_is_left_of_what_is_gone() -> None:
    """The tables have nothing that the code has not."""
    variables = {line.split("`")[1] for line in LINES if line.startswith("| `GGUFD_")}
    assert {setting.variable for setting in SETTINGS} == variables
    codes = {match[1] for line in LINES if (match := re.match(r"\| `([a-z_]+)` \| \d{3} \|", line))}
    assert all_codes().keys() == codes
    names = {match[1] for line in LINES if (match := re.match(r"\| `(ggufd_[a-z_]+)` \|", line))}
    assert dict(metrics()).keys() == names


def metrics() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every metric's name as it is scraped, with its labels where they can be told."""
    registry = CollectorRegistry()
    Metrics(registry)
    for family in [*registry.collect(), *LoaderCollector(never).describe()]:
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        yield f"{family.name}_total" if family.type == "counter" else family.name, tuple(sorted(labels))


def never() -> Snapshot:
    """Nobody is asked for a snapshot here."""
    raise AssertionError


@pytest.mark.parametrize(("name", "labels"), list(metrics()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_metric_has_its_row(name: str, labels: tuple[str, ...]) -> None:
    """The table of metrics has each name with its labels."""
    row = next(line for line in LINES if line.startswith(f"| `{name}` |"))
    told = sorted(label.strip() for label in row.split("|")[2].split(",") if label.strip())
    assert not labels or list(labels) == told


def test_every_route_has_its_row() -> None:
    """The table of routes has each method and path that is served, and no other."""
    app = create_app(cast(LoaderService, None), CollectorRegistry(), observe=lambda *_: None)
    served = {
        f"{method} {route.path_format}"
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == {match[1] for line in LINES if (match := re.match(r"\| `([A-Z]+ /[^`]*)` \|", line))}


def test_every_field_of_a_request_has_its_row() -> None:
    """The body's fields are explained, each in a row."""
    section = README.split("## Requests and plans")[1].split("A plan has:")[0]
    assert list(PlanBody.model_fields) == re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def members(start: str, end: str) -> set[str]:
    """What the first columns of the tables between two phrases name."""
    rows = re.findall(r"^\| (`[^|]*`) \|", README.split(start)[1].split(end)[0], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_member_of_an_answer_has_its_row(tmp_path: Path) -> None:
    """A handle, its plan and an entry of this have the members that the tables explain, and no others."""
    write_small_model(tmp_path / "m.gguf")
    service = LoaderService(world(tmp_path))
    try:
        handle = ended(service, service.submit(PlanRequest(model="m.gguf")).id)
        plan = service.handle_plan(handle.id)
    finally:
        assert service.close(20)
    assert handle_json(handle).keys() == members("A handle has:", "## Files")
    assert plan.keys() == members("A plan has:", "and an entry of")
    assert plan["tensors"][0].keys() == members("and an entry of", "## Reading a loaded model")


def test_every_option_of_a_simulated_device_has_its_row() -> None:
    """The table of options has each that the setting takes."""
    section = README.split("## Devices")[1].split("## Architectures")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    assert set(OPTIONS) == {name for row in rows for name in re.findall(r"`([\w-]+)", row)}


def test_every_command_has_its_row() -> None:
    """The table of commands names each."""
    told = {match[1] for line in LINES if (match := re.match(r"\| `ggufd ([\w-]+)", line))}
    assert COMMANDS.keys() == told


def test_the_two_commands_come_first() -> None:
    """README begins with two commands: one that shows the thing, one that tests it; each is one line."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    assert ["ggufd quickstart", "pytest -m 'not system and not bench'"] == [
        block.strip().split(".venv/bin/")[-1] for block in blocks[:2]
    ]
    assert [1, 1] == [block.count("\n") for block in blocks[:2]]


def tour() -> list[tuple[bool, str]]:
    """The blocks of the tour, and whether each shows problems."""
    found = re.findall(r"<!-- tour(: problems)? -->\n```sh\n(.*?)```", README, re.DOTALL)
    return [(bool(problems), block) for problems, block in found]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_tour_works_from_top_to_bottom(tmp_path: Path) -> None:
    """Every block of the tour, run in one shell against a daemon like the quickstart's, does what the text says."""
    write_small_model(tmp_path / "quickstart.gguf")
    flags = ("--model-roots", str(tmp_path), "--host-devices", "2", "--host-capacity-bytes", "1GiB")
    blocks = tour()
    with running_daemon(*flags) as daemon:
        assert all(TOUR_URL in block for _, block in blocks)
        script = "echo '=== block'\n".join(block for _, block in blocks).replace(TOUR_URL, daemon.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (0, "") == (done.returncode, done.stderr)
    for (problems, block), said in zip(blocks, done.stdout.split("=== block\n"), strict=True):
        assert said, block
        assert block.count("curl ") * problems == said.count('"type": "urn:ggufd:problem:'), block
    assert 2 == done.stdout.count('"state": "released"')
    assert 2 <= done.stdout.count('"state": "ready"')


def test_the_tour_is_there() -> None:
    """The test of the tour found its blocks."""
    assert len(tour()) >= 8
