"""Prometheus' own tool over what is shipped for it: configuration, rules, and each alert firing and clearing."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.deployment import DEPLOY, PROMETHEUS, load_yaml, rules
from tests.deploy.prometheus import tool

TESTS = PROMETHEUS / "tests" / "alerts.test.yaml"
ALERTS = [rule["alert"] for rule in rules("alerts.yaml")]


def promtool(*arguments: str) -> str:
    """What promtool says; it must be content."""
    done = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.system
def test_the_configuration_and_the_rules_are_sound() -> None:
    """promtool finds no fault in the configuration, nor in the rules it names."""
    assert "SUCCESS: 2 rule files found" in promtool("check", "config", str(PROMETHEUS / "prometheus.yaml"))
    promtool("check", "rules", *map(str, sorted((PROMETHEUS / "rules").glob("*.yaml"))))


@pytest.mark.system
def test_every_alert_fires_and_clears() -> None:
    """The rule tests pass."""
    assert "SUCCESS" in promtool("test", "rules", str(TESTS))


@pytest.mark.system
def test_the_rule_tests_can_fail(tmp_path: Path) -> None:
    """A threshold that nothing reaches makes them fail: they do test the rules."""
    for name in ("recording.yaml", "alerts.yaml"):
        text = (PROMETHEUS / "rules" / name).read_text()
        (tmp_path / name).write_text(text.replace("> 300", "> 300000"))
    (tmp_path / "test.yaml").write_text(TESTS.read_text().replace("../rules/", ""))
    with pytest.raises(AssertionError, match="LoadStuck"):
        promtool("test", "rules", str(tmp_path / "test.yaml"))


@pytest.mark.parametrize("alert", ALERTS)
def test_the_tests_cover_firing_and_silence_before_and_after(alert: str) -> None:
    """Each alert is asked for when it is silent, then when it fires, then when it is silent again."""
    asked = sorted(
        (int(case["eval_time"].removesuffix("m")), bool(case["exp_alerts"]))
        for test in load_yaml(TESTS)["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == alert
    )
    fires = [fired for _, fired in asked]
    assert fires[0] is False
    assert fires[-1] is False
    assert True in fires


@pytest.mark.parametrize("rule", rules("alerts.yaml"), ids=ALERTS)
def test_an_alert_says_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    """Each alert has a severity, a summary that names the place, a description, and a row in the handbook."""
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.search(r"\{\{ \$labels\.(instance|job) \}\}", rule["annotations"]["summary"])
    assert rule["annotations"]["description"]
    assert f"`{rule['alert']}`" in (DEPLOY / "README.md").read_text()
