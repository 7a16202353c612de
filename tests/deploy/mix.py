"""The scripted mix: what a busy day brings, in a minute and a half. Loads of every mode, faults of every kind, a load
that is stuck, plans, releases, cancels, a full queue. It notes what it was told, for tests to compare with metrics.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.builders import build, llama_keys, llama_tensors, t0
from tests.corpus import CORPUS, fresh
from tests.examples import example_file
from tests.worlds import CATALOG

SECONDS = 90
STUCK_FROM, STUCK_UNTIL = 15.0, 45.0
FLAGS = (
    "--host-capacity-bytes=1GiB",
    "--host-devices=host0=256MiB,host1=256MiB",
    "--simulated-devices="
    "copied:1GiB,no-mmap_support;tiny:1000;slow:1GiB,no-mmap_support,bandwidth=2MiB;"
    "stuck:1GiB,no-mmap_support,bandwidth=256;noalloc:1GiB,no-mmap_support,fail_allocation=1;"
    "nowrite:1GiB,no-mmap_support,fail_write=1;noimport:1GiB,fail_import;"
    "breaks:1GiB,no-mmap_support,fail_after=100KiB",
    "--load-workers=3",
    "--queue-limit=3",
    "--model-series-limit=3",
    "--shutdown-seconds=5",
)
HOSTS = ["host0", "host1"]


@dataclass(slots=True)
class Told:
    """What the daemon answered: handles as they ended, codes of refusals, what liveness did."""

    ended: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    alive: list[tuple[int, float]] = field(default_factory=list)
    stuck: dict[str, Any] = field(default_factory=dict)

    @property
    def reasons(self) -> set[str]:
        """Why loads failed."""
        return {one["error"]["code"] for one in self.ended if one["state"] == "failed"}


class Mix:
    """The mix over one daemon; `root` is its model root."""

    def __init__(self, url: str, root: Path) -> None:
        self.told = Told()
        self._root = root
        self._http = httpx.Client(base_url=url, timeout=60)
        self._done = threading.Event()
        t0(root / "small.gguf")
        t0(root / "other.gguf", layers=4)
        wide = {"ff": 1 << 14}
        build(root / "large.gguf", llama_keys(2, **wide), llama_tensors(2, **wide), seed=None)
        self._steps = self._good(), itertools.cycle(self._bad()), itertools.cycle(self._special())

    def run(self) -> Told:
        """All of it; takes `SECONDS`."""
        watching = threading.Thread(target=self._watch, daemon=True)
        stuck = threading.Thread(target=self._get_stuck, daemon=True)
        watching.start()
        stuck.start()
        begun = time.monotonic()
        good, bad, special = self._steps
        for tick in itertools.count():
            if time.monotonic() - begun > SECONDS:
                break
            next(good)
            next(bad)()
            next(bad)()
            if tick % 2:
                next(special)()
            time.sleep(max(0.0, begun + 0.8 * (tick + 1) - time.monotonic()))
        stuck.join()
        self._done.set()
        watching.join()
        self._http.close()
        return self.told

    def load(self, model: str, wait: float = 30, **wishes: Any) -> dict[str, Any]:
        """Load and wait; the handle as it is then, or the refusal."""
        answer = self._http.post("/v1/handles", json={"model": model, **wishes}, headers={"Prefer": f"wait={wait:g}"})
        found: dict[str, Any] = answer.json()
        if "handle_id" in found or answer.is_success:
            found = self._http.get(answer.headers["Location"]).json()
            if found["state"] in ("ready", "failed", "cancelled"):
                self.told.ended.append(found)
        else:
            self.told.refused.append(found["code"])
        return found

    def plan(self, model: str, **wishes: Any) -> None:
        """Ask for a plan."""
        answer = self._http.post("/v1/plans", json={"model": model, **wishes})
        if not answer.is_success:
            self.told.refused.append(answer.json()["code"])

    def release(self, handle: dict[str, Any]) -> None:
        """Release, and note what a load under way came to."""
        self._http.delete(f"/v1/handles/{handle['id']}").raise_for_status()
        if handle["state"] not in ("ready", "failed", "cancelled"):
            self.told.ended.append(self._http.get(f"/v1/handles/{handle['id']}").json())

    def _good(self) -> Iterator[None]:
        """Loads that work, in every split mode and load mode; each is released some loads later."""
        modes = ("auto", "none", "mmap", "mlock", "mmap+mlock", "direct_io")
        combinations = itertools.cycle(
            itertools.product(("layer", "tensor", "none"), modes, ("small", "other", "large"))
        )
        held: list[dict[str, Any]] = []
        for split_mode, load_mode, model in combinations:
            held.append(self.load(f"{model}.gguf", split_mode=split_mode, load_mode=load_mode, devices=HOSTS))
            held.append(self.load("small.gguf", devices=["copied"]))
            while len(held) > 6:
                self.release(held.pop(0))
            yield

    def _bad(self) -> list[Callable[[], object]]:
        """Loads of every file that is refused for its bytes."""
        made = []
        for bad in CORPUS:
            folder = self._root / f"bad-{bad.name}"
            folder.mkdir()
            path = fresh(bad, folder)
            if path.is_relative_to(self._root):
                made.append(str(path.relative_to(self._root)))
        return [lambda name=name: self.load(name) for name in made]  # type: ignore[misc]

    def _special(self) -> list[Callable[[], object]]:
        """Everything else that can go wrong or be asked, one after another."""
        t0(self._root / "lacks.gguf", drop=["output_norm.weight"])
        t0(self._root / "misshapen.gguf", shapes={"output_norm.weight": (32,)})
        t0(self._root / "unknown.gguf", set_keys={"general.architecture": "nonesuch"})
        whole = next(one for one in CATALOG if not one.capabilities.tensor_split)
        example_file(whole, self._root / "whole.gguf")
        return [
            lambda: self.load("lacks.gguf"),
            lambda: self.load("misshapen.gguf"),
            lambda: self.load("unknown.gguf"),
            lambda: self.load("whole.gguf", split_mode="tensor", devices=HOSTS),
            lambda: self.load("small.gguf", load_mode="mmap", devices=["copied"]),
            lambda: self.load("small.gguf", devices=["tiny"]),
            lambda: self.load("small.gguf", devices=["noalloc"]),
            lambda: self.load("small.gguf", devices=["nowrite"]),
            lambda: self.load("small.gguf", devices=["noimport"]),
            lambda: self.load("small.gguf", devices=["breaks"]),
            lambda: self.load("missing.gguf"),
            self._cancel,
            self._crowd,
            self._change,
            lambda: self.plan("small.gguf", split_mode="tensor", devices=HOSTS),
            lambda: self.plan("large.gguf", devices=["tiny"]),
            lambda: self.plan("lacks.gguf"),
        ]

    def _cancel(self) -> None:
        self.release(self.load("large.gguf", wait=0.1, devices=["slow"]))

    def _crowd(self) -> None:
        """More loads than there are threads and places to wait."""
        crowd = [self.load("large.gguf", wait=0, devices=["slow"]) for _ in range(8)]
        time.sleep(1.2)
        for one in crowd:
            if "id" in one:
                self.release(one)

    def _change(self) -> None:
        """A file that is cut short while it is loaded."""
        path = self._root / "changing.gguf"
        wide = {"ff": 1 << 15}
        build(path, llama_keys(2, **wide), llama_tensors(2, **wide), seed=None)
        handle = self.load("changing.gguf", wait=0.2, devices=["slow"])
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 8)
        until = time.monotonic() + 20
        while handle["state"] not in ("ready", "failed", "cancelled") and time.monotonic() < until:
            time.sleep(0.1)
            handle = self._http.get(f"/v1/handles/{handle['id']}").json()
        self.told.ended.append(handle)
        self.release(handle)

    def _get_stuck(self) -> None:
        """A load whose device takes nearly nothing, until it is given up."""
        time.sleep(STUCK_FROM)
        handle = self.load("small.gguf", wait=0, devices=["stuck"])
        time.sleep(STUCK_UNTIL - STUCK_FROM)
        self.told.stuck = self._http.get(f"/v1/handles/{handle['id']}").json()
        self.release(handle)

    def _watch(self) -> None:
        """Ask all the time whether the daemon is alive."""
        while not self._done.wait(0.2):
            asked = time.monotonic()
            self.told.alive.append((self._http.get("/healthz").status_code, time.monotonic() - asked))
