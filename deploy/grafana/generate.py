"""Writes the dashboards: `python -m deploy.grafana.generate`. Changed in `source/`; a test holds the files to it."""

from pathlib import Path

from deploy.grafana.source.anatomy import ANATOMY
from deploy.grafana.source.fleet import FLEET
from deploy.grafana.source.memory import MEMORY
from deploy.grafana.source.rendering import text
from deploy.grafana.source.slo import SLO

FOLDER = Path(__file__).resolve().parent / "dashboards"
DASHBOARDS = (FLEET, ANATOMY, MEMORY, SLO)


def main() -> None:
    """Write every dashboard's file."""
    FOLDER.mkdir(exist_ok=True)
    for one in DASHBOARDS:
        (FOLDER / f"{one.name}.json").write_text(text(one), encoding="utf-8")


if __name__ == "__main__":
    main()
