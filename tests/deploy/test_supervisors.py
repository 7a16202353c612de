"""What starts and stops the daemon: Compose, Kubernetes, systemd. Valid, and of one mind with the daemon."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from app.settings import SETTINGS, read_settings
from tests.deploy.deployment import DEPLOY, load_yaml
from tests.deploy.prometheus import tool

KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
CUSTOM = {"kustomization.yaml", "servicemonitor.yaml"}  # not of Kubernetes' own schema
UNIT = DEPLOY / "systemd" / "ggufd.service"
VARIABLES = {setting.variable for setting in SETTINGS}


def seconds(text: str) -> int:
    """`30s` as a number."""
    found = re.fullmatch(r"(\d+)s?", text)
    assert found
    return int(found[1])


def pod() -> dict[str, Any]:
    """The pod of the daemon set."""
    found: dict[str, Any] = load_yaml(DEPLOY / "kubernetes/daemonset.yaml")["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    """Its container."""
    (found,) = pod()["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.system
def test_compose_accepts_its_file() -> None:
    """docker-compose reads the file, and finds what it mounts."""
    program, environment = tool("docker-compose"), {**os.environ, "MODELS": "/srv/models"}
    command = [program, "-f", str(DEPLOY / "compose.yaml"), "config"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for found in re.findall(r"^ +- (/\S+):/\S+:ro$", done.stdout, re.MULTILINE):
        assert found == "/srv/models" or Path(found).is_dir(), found


def test_compose_starts_the_image_as_it_is_proved() -> None:
    """A read-only root, no capability, a read-only volume, and nothing that listens beyond this machine."""
    services = load_yaml(DEPLOY / "compose.yaml")["services"]
    daemon = services["ggufd"]
    assert {"ggufd", "prometheus", "grafana"} == services.keys()
    assert daemon["read_only"] is True
    assert ["ALL"] == daemon["cap_drop"]
    assert ["no-new-privileges:true"] == daemon["security_opt"]
    assert any(volume.endswith(":/models:ro") for volume in daemon["volumes"])
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"])
    assert daemon["environment"].keys() <= VARIABLES


@pytest.mark.parametrize("path", [path for path in KUBERNETES if path.name not in CUSTOM], ids=lambda path: path.name)
def test_kubernetes_accepts_each_file(path: Path) -> None:
    """Each file satisfies the schema of a current Kubernetes, strictly."""
    kubernetes_validate.validate(load_yaml(path), "1.33", strict=True)


def test_the_kustomization_names_every_file() -> None:
    """`kubectl apply -k` applies all of them, in one namespace."""
    kustomization = load_yaml(DEPLOY / "kubernetes/kustomization.yaml")
    assert {path.name for path in KUBERNETES} == {*kustomization["resources"], "kustomization.yaml"}
    for path in KUBERNETES:
        if path.name not in ("kustomization.yaml", "namespace.yaml"):
            assert "ggufd" == load_yaml(path)["metadata"]["namespace"]


def test_the_monitor_finds_the_service_and_its_port() -> None:
    """The service monitor selects the service's labels and scrapes its port, as often as the rules expect."""
    monitor, service = (load_yaml(DEPLOY / "kubernetes" / f"{name}.yaml") for name in ("servicemonitor", "service"))
    assert ("monitoring.coreos.com/v1", "ServiceMonitor") == (monitor["apiVersion"], monitor["kind"])
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert "/metrics" == endpoint["path"]
    set_ = load_yaml(DEPLOY / "kubernetes/daemonset.yaml")["spec"]
    assert service["spec"]["selector"].items() <= set_["template"]["metadata"]["labels"].items()
    assert set_["selector"]["matchLabels"].items() <= set_["template"]["metadata"]["labels"].items()


def test_no_probe_kills_a_long_load() -> None:
    """What kills asks only for liveness, which no load delays; readiness, which loads can fail, does not kill."""
    one = container()
    assert "/healthz" == one["startupProbe"]["httpGet"]["path"] == one["livenessProbe"]["httpGet"]["path"]
    assert "/readyz" == one["readinessProbe"]["httpGet"]["path"]
    assert one["livenessProbe"]["periodSeconds"] * one["livenessProbe"]["failureThreshold"] >= 60


def test_the_pod_runs_as_the_image_is_proved() -> None:
    """The image's user, no capability, a root and models that can't be written, no variables of Kubernetes' making."""
    one = container()
    assert one["securityContext"]["readOnlyRootFilesystem"] is True
    assert one["securityContext"]["allowPrivilegeEscalation"] is False
    assert ["ALL"] == one["securityContext"]["capabilities"]["drop"]
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert 10001 == pod()["securityContext"]["runAsUser"]
    assert pod()["enableServiceLinks"] is False
    assert [{"name": "models", "mountPath": "/models", "readOnly": True}] == one["volumeMounts"]
    assert {variable["name"] for variable in one["env"]} <= VARIABLES


def test_whoever_stops_the_daemon_waits_until_it_has_ended() -> None:
    """Each supervisor's patience is longer than the shutdown it asked for."""
    daemon = load_yaml(DEPLOY / "compose.yaml")["services"]["ggufd"]
    compose = read_settings(daemon["environment"] | {"GGUFD_HOST_DEVICES": "2"})
    assert seconds(daemon["stop_grace_period"]) >= compose.shutdown_seconds + 5
    kubernetes = read_settings({variable["name"]: variable["value"] for variable in container()["env"]})
    assert pod()["terminationGracePeriodSeconds"] >= kubernetes.shutdown_seconds + 5
    told = re.search(r"^Environment=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert told
    unit = read_settings(dict(part.split("=", 1) for part in told[1].split()))
    patience = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert patience
    assert int(patience[1]) >= unit.shutdown_seconds + 5


@pytest.mark.system
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """systemd-analyze finds no fault, and nothing that exposes more than it must."""
    program = tool("systemd-analyze")
    copy = tmp_path / "ggufd.service"
    copy.write_text(UNIT.read_text().replace("/opt/ggufd/bin/ggufd", sys.executable))
    done = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True, timeout=60)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "ggufd.service" in line]
    assert (0, []) == (done.returncode, said)
    judged = subprocess.run(
        [program, "security", "--offline=true", "--json=short", str(copy)], capture_output=True, text=True, timeout=60
    )
    exposed = [one["name"] for one in json.loads(judged.stdout) if float(one["exposure"] or 0) > 0.3]
    assert ["PrivateNetwork="] == exposed  # it serves
