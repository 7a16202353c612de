"""The registry: lists the catalog's folder and knows every architecture by name.

A name that comes from a model file is only ever looked up, never imported.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from app.architectures import catalog
from app.architectures.descriptor import Architecture
from app.errors import MetadataError


class DuplicateArchitectureError(Exception):
    """Two catalog files describe one name: a mistake in ggufd itself, found at start-up, naming both files."""


class Catalog:
    """Every architecture by name, in alphabetical order."""

    def __init__(self, architectures: dict[str, Architecture]) -> None:
        self._by_name = dict(sorted(architectures.items()))

    def get(self, name: str) -> Architecture:
        """The architecture called `name`. Raises MetadataError unsupported_architecture, with the name quoted."""
        try:
            return self._by_name[name]
        except KeyError:
            shown = repr(name if len(name) <= 60 else name[:59] + "…")
            raise MetadataError(
                f"unknown model architecture {shown}",
                code="unsupported_architecture",
                key="general.architecture",
                architecture=name[:60],
            ) from None

    def __iter__(self) -> Iterator[Architecture]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name


def load_catalog(package: ModuleType = catalog) -> Catalog:
    """Import every module of `package` and collect its `ARCHITECTURE`.

    Raises DuplicateArchitectureError if two files describe one name.
    """
    found: dict[str, Architecture] = {}
    files: dict[str, str] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        architecture = module.ARCHITECTURE
        assert isinstance(architecture, Architecture), f"{module.__name__}.ARCHITECTURE is no Architecture"
        if architecture.name in found:
            raise DuplicateArchitectureError(
                f"{files[architecture.name]} and {module.__name__} both describe {architecture.name!r}"
            )
        found[architecture.name] = architecture
        files[architecture.name] = module.__name__
    return Catalog(found)
