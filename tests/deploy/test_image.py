"""The image's steps, run without a container engine in a clean Debian root; and what they make, started."""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.builders import t0
from tests.deploy.deployment import ROOT
from tests.deploy.dockerfile import Builder, Stage, parse, start
from tests.deploy.prometheus import tool

STEPS = parse((ROOT / "Dockerfile").read_text())
RELEASE = "bookworm"
START_SECONDS = 60
# What names the machine's own sources of packages, lent to the build steps.
LENT_FILES = ("etc/resolv.conf", "etc/hosts", "etc/pip.conf", "etc/xdg/pip", "etc/apt/sources.list.d/debian.sources")


def test_both_stages_stand_on_the_release_that_is_proved() -> None:
    """The image is built on a Debian whose plain root a test can make."""
    bases = [step.text.split(" AS ")[0] for step in STEPS if step.word == "FROM"]
    assert [f"debian:{RELEASE}-slim", "base", "base"] == bases


def test_the_build_takes_only_locked_files() -> None:
    """Every package of Python that a step installs comes with its hash, or from the step before."""
    commands = [part for step in STEPS if step.word == "RUN" for part in step.text.split("&&")]
    installs = [part for part in commands if re.search(r"pip\S* .*\binstall\b", part)]
    assert len(installs) == 3
    assert all("--require-hashes" in part or "--no-index" in part for part in installs)


def test_nothing_else_of_the_tree_gets_into_the_build() -> None:
    """What a build is given is what its steps copy, no more."""
    allowed = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = {
        word for step in STEPS if step.word == "COPY" and "--from" not in step.text for word in step.text.split()[:-1]
    }
    assert allowed == copied
    assert all((ROOT / name).exists() for name in allowed)


@pytest.fixture(scope="module")
def image() -> Iterator[Stage]:
    """The last stage of the Dockerfile, built from a plain root."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a clean root")
    with tempfile.TemporaryDirectory(prefix="ggufd-image-", ignore_cleanup_errors=True) as scratch:
        plain = Path(scratch) / "plain"
        _debootstrap(plain)
        builder = Builder(plain=plain, source=ROOT, scratch=Path(scratch), lent=_lend(plain))
        yield builder.build(STEPS)


def _debootstrap(plain: Path) -> None:
    program = tool("debootstrap")
    sources = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    mirror = next((line.split()[2] for line in sources if line.startswith(f"{RELEASE} main ")), None)
    if mirror is None:
        pytest.skip(f"this machine has no source of {RELEASE}'s packages")
    done = subprocess.run(
        [program, "--variant=minbase", RELEASE, str(plain), mirror], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-2000:]
    shutil.rmtree(plain / "var/cache/apt/archives")
    (plain / "var/cache/apt/archives/partial").mkdir(parents=True)


def _lend(plain: Path) -> dict[str, str]:
    (plain / "etc/apt/sources.list").unlink(missing_ok=True)
    for name in LENT_FILES:
        source, target = Path("/") / name, plain / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copyfile(source, target)
    (plain / "etc/dpkg/dpkg.cfg.d/speed").write_text("force-unsafe-io\n")  # as in Debian's images
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    lent = {
        name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or name == "PIP_INDEX_URL"
    }
    if bundle.exists():
        shutil.copyfile(bundle, plain / "opt/lent-certificates.crt")
        lent["PIP_CERT"] = "/opt/lent-certificates.crt"
    return {"DEBIAN_FRONTEND": "noninteractive", "PIP_ROOT_USER_ACTION": "ignore", **lent}


@contextmanager
def container(image: Stage, models: Path, **variables: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The image, started; its address and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = {"GGUFD_HOST": "127.0.0.1", "GGUFD_PORT": port, **variables}
    process = subprocess.Popen(
        start(image, image.start, given, {image.volumes[0]: models}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        said = list(itertools.takewhile(lambda line: "listens on" not in line, process.stdout))
        watchdog.cancel()
        assert process.poll() is None, "".join(said)
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.system
@pytest.mark.timeout(900)
def test_the_image_serves_a_load(image: Stage, tmp_path: Path) -> None:
    """Started as its user on a root that can't be written, it loads a model, is healthy, and ends with 0."""
    t0(tmp_path / "m.gguf")
    tmp_path.chmod(0o755)
    with container(image, tmp_path) as (url, process):
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(r"^Uid:\s+10001\s+10001\s+10001\s+10001$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        answer = httpx.post(
            f"{url}/v1/handles", json={"model": "m.gguf"}, headers={"Prefer": "wait=20"}, timeout=30
        ).json()
        assert "ready" == answer["state"], answer
        given = {"GGUFD_PORT": url.rsplit(":", 1)[1]}
        assert 0 == _exit_code(image, image.healthcheck, given, tmp_path)
        assert 200 == httpx.get(f"{url}/readyz").status_code
        assert "SIGTERM" == image.stop_signal
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(20)
        assert time.monotonic() - asked < 10
    assert 0 != _exit_code(image, image.healthcheck, given, tmp_path)  # nobody is there any more


@pytest.mark.system
@pytest.mark.timeout(900)
def test_nothing_of_the_image_can_be_written(image: Stage, tmp_path: Path) -> None:
    """Not by the image's user, not in its own folders, not in the models', not for temporary files."""
    tmp_path.chmod(0o777)
    for folder in ("/", "/opt/ggufd", "/models", "/tmp", "/dev/shm"):
        assert 1 == _exit_code(image, ["python", "-c", f"open('{folder}/x', 'w')"], {}, tmp_path), folder
    assert [] == list(tmp_path.iterdir())


@pytest.mark.system
@pytest.mark.timeout(900)
def test_the_image_is_small(image: Stage) -> None:
    """What the image adds to its base stays under 250 MB; there is no pip, no compiler, no source in it."""
    added = _du(image.root / "opt/ggufd")
    whole = _du(image.root)
    print(f"image: {whole / 1e6:.0f} MB in all, {added / 1e6:.0f} MB of them the environment")
    assert added < 250e6
    for name in ("pip", "gcc", "pip3"):
        assert not any(
            (image.root / folder / name).exists() for folder in ("usr/bin", "usr/local/bin", "opt/ggufd/bin")
        )
    assert not (image.root / "source").exists()


def _du(folder: Path) -> int:
    said = subprocess.run(["du", "-sb", "--one-file-system", str(folder)], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[0])


def _exit_code(image: Stage, command: list[str], variables: dict[str, str], models: Path) -> int:
    wrapped = start(image, command, variables, {image.volumes[0]: models})
    return subprocess.run(wrapped, capture_output=True, timeout=30).returncode
