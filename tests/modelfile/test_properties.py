"""Whatever is done to a file, reading it gives a value or a typed error: soon, and in bounded memory."""

import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.encoding import encode
from app.api.problems import problem
from app.architectures.understanding import understand
from app.errors import GgufdError
from app.modelfile.reader import read_array, read_model_file
from app.modelfile.types import ArrayValue, ModelFile
from app.modelfile.vocabulary import duplicate_tokens
from app.units import MIB
from tests.builders import t0, t0_split, tp, vocabulary
from tests.oracle import the_catalog


def bases(folder: Path) -> list[Path]:
    """Three valid files of different make: plain, with a vocabulary and quantised, the first of two shards."""
    types = {"blk.0.ffn_down.weight": "q4_K", "output.weight": "q8_0"}
    keys = {**vocabulary(500), "general.tags": ["a", "b"], "x.array": [1, 2, 3]}
    (folder / "split").mkdir()
    return [
        t0(folder / "plain.gguf", seed=None),
        tp(folder / "words.gguf", 4, 512, 1, types=types, set_keys=keys, alignment=64, seed=None),
        t0_split(folder / "split", (2, 37))[0],
    ]


class Base(NamedTuple):
    """A valid file: the bytes up to its tensor data, which is a hole, and its size."""

    path: Path
    header: bytes
    size: int

    def become(self, header: bytes, size: int) -> None:
        """Write another header of the same length, and end the file elsewhere; the hole costs nothing.

        A file that is opened for writing anew would be forced to the disk at each close.
        """
        with self.path.open("r+b") as file:
            file.write(header)
            file.truncate(size)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    """The three files."""
    found = []
    for path in bases(tmp_path_factory.mktemp("bases")):
        start = read_model_file(path).shards[0].data_start
        found.append(Base(path, path.read_bytes()[:start], path.stat().st_size))
    return found


def use(path: Path) -> ModelFile | None:
    """Everything that is done with a file before it is planned; typed errors that can be told as JSON are fine."""
    try:
        model = read_model_file(path)
    except GgufdError as error:
        encode(problem(error))
        return None
    for key, entry in model.metadata.items():
        if isinstance(entry.value, ArrayValue):
            assert len(read_array(model, key)) == entry.value.count
    duplicate_tokens(model)
    try:
        understand(model, the_catalog()).comparison.require()
    except GgufdError as error:
        encode(problem(error))
    for tensor in model.tensors:
        shard = model.shards[tensor.shard]
        assert shard.data_start <= tensor.offset <= tensor.offset + tensor.nbytes <= shard.identity.size
    return model


SPECIAL = [(2**n + d) % 2**64 for n in (0, 7, 8, 16, 31, 32, 40, 62, 63, 64) for d in (-1, 0, 1)]
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.one_of(
            st.binary(min_size=1, max_size=12),
            st.sampled_from(
                [(2**n + d) % 2**64 for n in (0, 7, 8, 16, 31, 32, 40, 62, 63, 64) for d in (-1, 0, 1)]
            ).map(lambda number: number.to_bytes(8, "little")),
        ),
    ),
    max_size=4,
)


@settings(max_examples=300)
@given(which=st.integers(0, 2), edits=EDITS, kept=st.one_of(st.none(), st.floats(0, 1)))
def test_edits_and_truncations(
    files: list[Base], which: int, edits: list[tuple[float, bytes]], kept: float | None
) -> None:
    """Any edits and truncation of a valid file give a model that holds together, or a typed error."""
    base = files[which]
    changed = bytearray(base.header)
    for place, patch in edits:
        at = int(place * len(base.header))
        changed[at : at + len(patch)] = patch[: len(changed) - at]
    try:
        base.become(bytes(changed), base.size if kept is None else int(kept * base.size))
        use(base.path)
    finally:
        base.become(base.header, base.size)


@given(content=st.binary(max_size=200))
def test_arbitrary_bytes(files: list[Base], content: bytes) -> None:
    """Arbitrary bytes behind a good start are no different."""
    folder = files[0].path.parent
    for start in (b"", b"GGUF\3\0\0\0", b"GGUF\3\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"):
        path = folder / "arbitrary.gguf"
        path.write_bytes(start + content)
        use(path)


def mutants(base: Base, rng: random.Random) -> Iterator[tuple[bytes, int]]:
    """Endless random edits and truncations: headers, and where the files end."""
    while True:
        changed = bytearray(base.header)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(len(base.header))
            kind = rng.random()
            if kind < 0.5:
                changed[at] = rng.randrange(256)
            elif kind < 0.8:
                changed[at : at + 8] = rng.choice(SPECIAL).to_bytes(8, "little")
            else:
                changed[at : at + 4] = rng.randbytes(4)
        del changed[len(base.header) :]
        cut = rng.random()
        end = len(base.header) if cut < 0.1 else base.size
        yield bytes(changed), rng.randrange(end) if cut < 0.2 else base.size


def run(files: list[Base], count: int, seed: int) -> tuple[float, int]:
    """Use `count` mutants of each file; answers the slowest in seconds, and how many could still be read."""
    rng = random.Random(seed)
    slowest, accepted = 0.0, 0
    for base in files:
        for _, (header, size) in zip(range(count), mutants(base, rng), strict=False):
            base.become(header, size)
            start = time.perf_counter()
            accepted += use(base.path) is not None
            slowest = max(slowest, time.perf_counter() - start)
        base.become(base.header, base.size)
    return slowest, accepted


def test_many_mutants_stay_cheap(files: list[Base]) -> None:
    """Thousands of mutants each take under a second, and together leave no memory behind."""
    run(files, 20, seed=0)
    tracemalloc.start()
    try:
        slowest, accepted = run(files, 300, seed=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert slowest < 1
    assert peak < 20 * MIB
    assert 0 < accepted < 900


@pytest.mark.slow
def test_a_hundred_thousand_mutants(files: list[Base]) -> None:
    """A hundred thousand random edits and truncations give no raw exception, no second of delay, no 50 MB."""
    before = resident()
    slowest, _ = run(files, 33_334, seed=2)
    assert slowest < 1
    assert resident() - before < 50 * MIB


def resident() -> int:
    """VmHWM of this process, in bytes: the most it ever had."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
