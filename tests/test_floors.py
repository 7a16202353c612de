"""The floors of the house, read from the imports themselves."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {
    "app": 0,
    "app.errors": 0,
    "app.units": 0,
    "app.ggml": 0,
    "app.modelfile": 1,
    "app.architectures": 2,
    "app.planner": 3,
    "app.devices": 3,
    "app.loading": 4,
    "app.residency": 4,
    "app.service": 5,
    "app.api": 6,
    "app.metrics": 6,
    "app.client": 6,
    "app.main": 7,
    "app.cli": 7,
    "app.settings": 7,
    "app.__main__": 7,
}
NO_DOOR = {("app.planner", "app.devices"), ("app.devices", "app.planner")}
WEB = {"fastapi", "starlette", "pydantic", "anyio"}
SERVER = {"uvicorn"}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv"}
SOURCES = sorted((ROOT / "app").rglob("*.py"))


def module_of(path: Path) -> str:
    """`app/planner/plan.py` → `app.planner.plan`; a package's `__init__` is the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """The package or module of the tree's first level that `module` belongs to."""
    return ".".join(module.split(".")[:2])


def imports_of(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Every module that `source` imports, at any depth of the code, relative imports resolved."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            if base == "app":
                yield from (f"app.{alias.name}" if f"app.{alias.name}" in FLOORS else "app" for alias in node.names)
            else:
                yield base


def faults_of(source: str, module: str, is_package: bool = False) -> list[str]:
    """What `source`, standing at `module`, imports that it may not; sentences."""
    mine = unit_of(module)
    if mine not in FLOORS:
        return [f"{module} stands on no floor"]
    faults = []
    for name in imports_of(source, module, is_package):
        top = name.split(".")[0]
        if top == "app":
            theirs = unit_of(name)
            if theirs not in FLOORS:
                faults.append(f"{module} imports {name}, which stands on no floor")
            elif FLOORS[theirs] > FLOORS[mine]:
                faults.append(f"{module} (floor {FLOORS[mine]}) imports {name} (floor {FLOORS[theirs]})")
            elif (mine, theirs) in NO_DOOR:
                faults.append(f"{module} imports {name}: there is no door between them")
        elif top in WEB and mine != "app.api":
            faults.append(f"{module} imports {name}: only app.api knows the web framework")
        elif top in SERVER and FLOORS[mine] < 7:
            faults.append(f"{module} imports {name}: only a door runs the server")
    return faults


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_a_module_imports_only_its_own_floor_or_lower(path: Path) -> None:
    """No import leads upstairs, through the wall between planner and devices, or to the web framework from below."""
    assert [] == faults_of(path.read_text(), module_of(path), path.name == "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_only_settings_reads_the_environment(path: Path) -> None:
    """Paths, ports and limits arrive as values: nothing but `settings.py` asks the process's environment."""
    found = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and ENVIRONMENT & {a.name for a in node.names})
    ]
    assert module_of(path) == "app.settings" or [] == found


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_no_file_holds_two_nouns(path: Path) -> None:
    """A source file of more than 400 lines is cut in two."""
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize(
    ("source", "module", "fault"),
    [
        ("import app.service", "app.planner.plan", "floor 5"),
        ("def f():\n    from app.devices import facts", "app.planner.plan", "no door"),
        ("from app.planner.plan import SplitPlan", "app.devices.host", "no door"),
        ("from app import settings", "app.api.app", "floor 7"),
        ("from ..service import LoaderService", "app.loading.run", "floor 5"),
        ("import fastapi", "app.service", "web framework"),
        ("import uvicorn", "app.api.app", "server"),
        ("import os", "app.unheard_of", "no floor"),
    ],
)
def test_a_wrong_import_is_found(source: str, module: str, fault: str) -> None:
    """The check itself sees each kind of wrong import, also inside a function and through a relative name."""
    assert fault in " ".join(faults_of(source, module))


def test_right_imports_are_left_alone() -> None:
    """Imports of the own package, of lower floors and of the version are no faults."""
    source = "from app import __version__\nfrom app.errors import FileError\nfrom . import types\nimport os"
    assert [] == faults_of(source, "app.modelfile.reader")
