"""`ggufd architectures`: the catalog as a table, or as JSON."""

import argparse
import json
from dataclasses import asdict

from app.api.views import architecture_json
from app.architectures.registry import load_catalog
from app.cli.text import plural, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to print it."""
    parser.add_argument("--json", action="store_true", help="print the catalog as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the catalog."""
    catalog = load_catalog()
    if arguments.json:
        print(json.dumps([architecture_json(one) for one in catalog], indent=2))
        return 0
    rows = []
    for one in catalog:
        can = [name.replace("_", " ") for name, has in asdict(one.capabilities).items() if has]
        rows.append((one.name, f"refused: {one.refused}" if one.refused else ", ".join(can)))
    print(table(rows, header=("architecture", "capabilities")))
    print(f"\n{plural(len(rows), 'architecture')}")
    return 0
