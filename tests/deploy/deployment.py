"""The files under `deploy/`, read: where they are, what they ask Prometheus."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression of a panel, or one side of a rule."""

    where: str
    expression: str
    unit: str = "short"
    instant: bool = False

    def asked(self, window: str, span: str) -> str:
        """The expression as Grafana would send it with everything selected."""
        text = self.expression.replace("$__rate_interval", window).replace("$__range", span)
        text = re.sub(r"\$(instance|device)\b", ".*", text)
        assert "$" not in text, f"{self.where}: {text} asks for a variable that nobody sets"
        return text


def load_yaml(path: Path) -> Any:
    """One YAML document."""
    return yaml.safe_load(path.read_text())


def dashboard(path: Path) -> dict[str, Any]:
    """One dashboard."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def panels(path: Path) -> list[dict[str, Any]]:
    """The panels of a dashboard."""
    return [panel for panel in dashboard(path)["panels"] if panel["type"] != "row"]


def panel_queries() -> Iterator[Query]:
    """Every expression of every panel."""
    for path in DASHBOARDS:
        for panel in panels(path):
            for target in panel["targets"]:
                yield Query(
                    where=f"{path.stem} / {panel['title']}",
                    expression=target["expr"],
                    unit=panel["fieldConfig"]["defaults"]["unit"],
                    instant=target["instant"],
                )


def rules(name: str) -> list[dict[str, Any]]:
    """The rules of one file."""
    return [rule for group in load_yaml(PROMETHEUS / "rules" / name)["groups"] for rule in group["rules"]]


def rule_queries() -> Iterator[Query]:
    """Every recording rule's expression, and what the alerts compare with numbers, without the numbers."""
    for rule in rules("recording.yaml"):
        yield Query(where=f"rule {rule['record']}", expression=rule["expr"])
    for rule in rules("alerts.yaml"):
        for part in rule["expr"].split(" and "):
            compared = re.fullmatch(r"(\S+) > [0-9.]+", part.strip())
            assert compared, f"{rule['alert']} compares more than one series with one number"
            yield Query(where=f"alert {rule['alert']}", expression=compared[1])


def names_in(expression: str) -> set[str]:
    """The series an expression names, recorded ones with their colons."""
    bare = re.sub(r'"(\\.|[^"\\])*"', '""', expression)
    return set(re.findall(r"[a-z_]+:ggufd_[a-z_]+:[a-z0-9_]+|(?<![a-z:_])ggufd_[a-z_]+", bare))
