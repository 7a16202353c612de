"""The locked dependencies: what pyproject.toml asks for, each file of it known by its hash, and nothing else."""

import re
import tomllib
from dataclasses import dataclass

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.deployment import DEPLOY, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
US = f"{PROJECT['project']['name']} (pyproject.toml)"


@dataclass(frozen=True, slots=True)
class Pin:
    """One locked package: its version, the hashes of its files, and who wants it."""

    version: str
    hashes: list[str]
    wanted_by: set[str]


def pins(name: str) -> dict[str, Pin]:
    """A lock file, by package."""
    text = (DEPLOY / "locks" / name).read_text()
    found: dict[str, Pin] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        head = re.match(r"([A-Za-z0-9._-]+)==(\S+)", block)
        if head:
            via = block.partition("# via")[2]
            wanted = {line.strip(" #") for line in via.splitlines() if line.strip(" #")}
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block)
            found[canonicalize_name(head[1])] = Pin(head[2], hashes, wanted)
    return found


@pytest.mark.parametrize("name", ["runtime.txt", "build.txt"])
def test_every_package_has_its_hashes(name: str) -> None:
    """Every line pins one version, with a hash for each of its files; there is no other source and no option."""
    found = pins(name)
    assert found
    assert all(pin.hashes for pin in found.values())
    lines = [line for line in (DEPLOY / "locks" / name).read_text().splitlines() if not line.lstrip().startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==\S+ \\|    --hash=sha256:[0-9a-f]{64}(?: \\)?|", line) for line in lines)


def test_the_lock_is_what_the_project_asks_for() -> None:
    """Each dependency is pinned at a version that pyproject.toml allows, and what it calls its own is a dependency."""
    found = pins("runtime.txt")
    asked = {canonicalize_name(one.name): one for one in map(Requirement, PROJECT["project"]["dependencies"])}
    assert {name for name, pin in found.items() if US in pin.wanted_by} == asked.keys()
    for name, requirement in asked.items():
        assert requirement.specifier.contains(found[name].version), f"{requirement} is locked at {found[name].version}"


def test_nothing_is_locked_that_nobody_wants() -> None:
    """What is pinned beyond the project's own dependencies is wanted by something that is pinned."""
    found = pins("runtime.txt")
    for name, pin in found.items():
        assert pin.wanted_by, name
        assert {canonicalize_name(one) for one in pin.wanted_by - {US}} <= found.keys()


def test_the_wheel_is_built_with_what_the_project_asks_for() -> None:
    """The locked setuptools is one that the build system allows."""
    found = pins("build.txt")
    for requirement in map(Requirement, PROJECT["build-system"]["requires"]):
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)].version)
