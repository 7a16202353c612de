"""Measuring what is computed about every recorded real model that may be split."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from app.architectures.understanding import Understanding
from tests.oracle import Models, records, the_catalog

ROUNDS = 9
T = TypeVar("T")


def splittable(oracle: Path, folder: Path) -> dict[str, Understanding]:
    """The recorded real models that may be split by tensor, by their file's name."""
    models = Models(oracle, folder)
    return {
        record["file"]: models("real", record["file"])
        for record in records(oracle, "facts/real")
        if record["arch"] in the_catalog() and record["supports_sm_tensor"]
    }


def computing(function: Callable[[], object]) -> float:
    """Seconds that this thread computes for `function`: not what others took from it."""
    start = time.thread_time()
    function()
    return time.thread_time() - start


def medians(of: Mapping[str, T], *measures: Callable[[T], float]) -> dict[str, list[float]]:
    """The median of each measure, by name: round after round over all, so that no slow moment hits one alone."""
    rounds = [[[measure(one) for measure in measures] for one in of.values()] for _ in range(ROUNDS)]
    return {
        name: [statistics.median(seconds) for seconds in zip(*mine, strict=True)]
        for name, mine in zip(of, zip(*rounds, strict=True), strict=True)
    }
