"""A Dockerfile's steps without a container engine: read, and run in a plain root made by debootstrap.

Only what our Dockerfile uses: FROM, RUN, COPY, WORKDIR, ENV, USER, VOLUME, EXPOSE, STOPSIGNAL, HEALTHCHECK, ENTRYPOINT,
CMD. Anything else is refused, so that no step goes unproved.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = frozenset(
    "FROM RUN COPY WORKDIR ENV USER VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD".split()  # noqa: SIM905
)
STEP_SECONDS = 400


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction with its text, continuation lines joined."""

    word: str
    text: str


@dataclass(slots=True)
class Stage:
    """One stage: its root, and what its image would be started with."""

    name: str
    base: str
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    stop_signal: str = ""

    @property
    def start(self) -> list[str]:
        """What a container would run."""
        return [*self.entrypoint, *self.command]


def parse(text: str) -> list[Step]:
    """The steps of a Dockerfile."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    steps = []
    for line in filter(str.strip, joined.splitlines()):
        word, _, rest = line.partition(" ")
        assert word in KNOWN, f"a Dockerfile step that nobody proves: {line}"
        steps.append(Step(word, rest.strip()))
    return steps


@dataclass(slots=True)
class Builder:
    """Builds the stages of a Dockerfile from `source`, each in a root under `scratch`, from the plain root `plain`.

    `lent` is the environment that steps get beyond the image's own: where the machine's packages come from.
    """

    plain: Path
    source: Path
    scratch: Path
    lent: dict[str, str]
    stages: dict[str, Stage] = field(default_factory=dict)
    wanted: Counter[str] = field(default_factory=Counter)

    def build(self, steps: Sequence[Step]) -> Stage:
        """The last stage, built."""
        stage: Stage | None = None
        self.wanted.update(step.text.split(" AS ")[0].strip() for step in steps if step.word == "FROM")
        self.wanted.update(re.findall(r"--from=(\S+)", " ".join(step.text for step in steps if step.word == "COPY")))
        for step in steps:
            if step.word == "FROM":
                stage = self._begin(step.text)
            else:
                assert stage is not None
                self._apply(stage, step)
        assert stage is not None
        return stage

    def _begin(self, text: str) -> Stage:
        base, _, name = (part.strip() for part in text.partition(" AS "))
        name = name or f"stage{len(self.stages)}"
        parent = self.stages.get(base)
        root = self.scratch / name
        below = parent.root if parent else self.plain
        self.wanted[base] -= 1
        if self.wanted[base]:
            subprocess.run(["cp", "-a", "--reflink=auto", str(below), str(root)], check=True)
        else:
            below.rename(root)  # nobody asks for it again
        stage = Stage(name=name, base=parent.base if parent else base, root=root)
        if parent is not None:
            stage.environment = dict(parent.environment)
        self.stages[name] = stage
        return stage

    def _apply(self, stage: Stage, step: Step) -> None:
        text = step.text
        match step.word:
            case "RUN":
                run_in(stage, ["/bin/sh", "-c", text], self.lent)
            case "COPY":
                self._copy(stage, text)
            case "WORKDIR":
                stage.folder = text
                (stage.root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "ENV":
                stage.environment |= dict(part.split("=", 1) for part in shlex.split(text))
            case "USER":
                stage.user = text
            case "VOLUME":
                stage.volumes.append(text)
                (stage.root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "HEALTHCHECK":
                stage.healthcheck = json.loads(text.partition(" CMD ")[2])
            case "ENTRYPOINT":
                stage.entrypoint = json.loads(text)
            case "CMD":
                stage.command = json.loads(text)
            case "STOPSIGNAL":
                stage.stop_signal = text
            case "EXPOSE":
                pass

    def _copy(self, stage: Stage, text: str) -> None:
        words = shlex.split(text)
        origin = self.source
        if words[0].startswith("--from="):
            origin = self.stages[words.pop(0).removeprefix("--from=")].root
        *sources, target = words
        into = stage.root / os.path.join(stage.folder, target).lstrip("/")
        for source in sources:
            found = origin / source.lstrip("/")
            if found.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if origin == self.source else None
                shutil.copytree(found, into, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, into / found.name)


def environment(stage: Stage, more: dict[str, str] | None = None) -> dict[str, str]:
    """What a process of the image sees."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **(more or {}), **stage.environment}


def run_in(stage: Stage, command: Sequence[str], more: dict[str, str]) -> None:
    """Run a build step as root, with a /proc of its own."""
    wrapped = enter(stage, command, environment(stage, more))
    done = subprocess.run(wrapped, capture_output=True, text=True, timeout=STEP_SECONDS, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def enter(stage: Stage, command: Sequence[str], variables: dict[str, str]) -> list[str]:
    """The command line that runs `command` as root in a stage's root; its mounts end with it."""
    inside = ["chroot", str(stage.root), "/usr/bin/env", "-i", "-C", stage.folder, *_assignments(variables), *command]
    return _unshared([f"mount -t proc proc {shlex.quote(str(stage.root))}/proc"], inside)


def start(stage: Stage, command: Sequence[str], variables: dict[str, str], volumes: dict[str, Path]) -> list[str]:
    """The command line that runs `command` as a container engine would under `--read-only --cap-drop ALL`.

    The root and the volumes can't be written, there is no place for temporary files, the user is the image's, without
    capabilities and without a way to new ones.
    """
    root = shlex.quote(str(stage.root))
    mounts = [f"mount --bind {root} {root}"]
    mounts += [f"mount --bind {shlex.quote(str(folder))} {root}{place}" for place, folder in volumes.items()]
    mounts += [f"mount -o remount,ro,bind {root}{place}" for place in ("", *volumes)]
    mounts += [f"mount -t proc proc {root}/proc"]
    user, group = stage.user.split(":")
    # fmt: off
    dropped = [
        "/usr/bin/setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs",
        "--bounding-set=-all", "--inh-caps=-all",
    ]
    # fmt: on
    variables = {**environment(stage), "HOME": "/nonexistent", **variables}
    inside = ["chroot", str(stage.root), *dropped, "/usr/bin/env", "-i", *_assignments(variables), *command]
    return _unshared(mounts, inside)


def _assignments(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _unshared(mounts: Sequence[str], inside: Sequence[str]) -> list[str]:
    script = " && ".join([*mounts, f"exec {shlex.join(inside)}"])
    return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script]
