"""Whatever is done to a file, reading it gives a value or a typed error: soon, and in bounded memory."""

import contextlib
import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import GgufdError
from app.modelfile.reader import read_array, read_model_file
from app.modelfile.types import ArrayValue, ModelFile
from app.modelfile.vocabulary import check_vocabulary, duplicate_tokens
from app.units import MIB
from tests.builders import t0, t0_split, tp, vocabulary


def bases(folder: Path) -> list[Path]:
    """Three valid files of different make: plain, with a vocabulary and quantised, the first of two shards."""
    types = {"blk.0.ffn_down.weight": "q4_K", "output.weight": "q8_0"}
    keys = {**vocabulary(500), "general.tags": ["a", "b"], "x.array": [1, 2, 3]}
    (folder / "split").mkdir()
    return [
        t0(folder / "plain.gguf"),
        tp(folder / "words.gguf", 4, 512, 1, types=types, set_keys=keys, alignment=64),
        t0_split(folder / "split", (2, 37))[0],
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, bytes, int]]:
    """The three files, their bytes, and where their tensor data starts."""
    paths = bases(tmp_path_factory.mktemp("bases"))
    return [(path, path.read_bytes(), read_model_file(path).shards[0].data_start) for path in paths]


def use(path: Path) -> ModelFile | None:
    """Everything that is done with a file before its tensors are read; typed errors are fine."""
    try:
        model = read_model_file(path)
    except GgufdError:
        return None
    for key, entry in model.metadata.items():
        if isinstance(entry.value, ArrayValue):
            assert len(read_array(model, key)) == entry.value.count
    with contextlib.suppress(GgufdError):
        check_vocabulary(model)
    duplicate_tokens(model)
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
    files: list[tuple[Path, bytes, int]],
    which: int,
    edits: list[tuple[float, bytes]],
    kept: float | None,
) -> None:
    """Any edits and truncation of a valid file give a model that holds together, or a typed error."""
    path, content, header = files[which]
    changed = bytearray(content)
    for place, patch in edits:
        at = int(place * header)
        changed[at : at + len(patch)] = patch
    if kept is not None:
        del changed[int(kept * len(changed)) :]
    try:
        path.write_bytes(changed)
        use(path)
    finally:
        path.write_bytes(content)


@given(content=st.binary(max_size=200))
def test_arbitrary_bytes(files: list[tuple[Path, bytes, int]], content: bytes) -> None:
    """Arbitrary bytes behind a good start are no different."""
    folder = files[0][0].parent
    for start in (b"", b"GGUF\3\0\0\0", b"GGUF\3\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"):
        path = folder / "arbitrary.gguf"
        path.write_bytes(start + content)
        use(path)


def mutants(content: bytes, header: int, rng: random.Random) -> Iterator[bytes]:
    """Endless random edits and truncations, most of them in the header."""
    while True:
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(header)
            kind = rng.random()
            if kind < 0.5:
                changed[at] = rng.randrange(256)
            elif kind < 0.8:
                changed[at : at + 8] = rng.choice(SPECIAL).to_bytes(8, "little")
            else:
                changed[at : at + 4] = rng.randbytes(4)
        if rng.random() < 0.2:
            del changed[rng.randrange(len(changed)) :]
        yield bytes(changed)


def run(files: list[tuple[Path, bytes, int]], count: int, seed: int) -> tuple[float, int]:
    """Use `count` mutants of each file; answers the slowest in seconds, and how many could still be read."""
    rng = random.Random(seed)
    slowest, accepted = 0.0, 0
    for path, content, header in files:
        for _, mutant in zip(range(count), mutants(content, header, rng), strict=False):
            path.write_bytes(mutant)
            start = time.perf_counter()
            accepted += use(path) is not None
            slowest = max(slowest, time.perf_counter() - start)
        path.write_bytes(content)
    return slowest, accepted


def test_many_mutants_stay_cheap(files: list[tuple[Path, bytes, int]]) -> None:
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
def test_a_hundred_thousand_mutants(files: list[tuple[Path, bytes, int]]) -> None:
    """A hundred thousand random edits and truncations give no raw exception, no second of delay, no 50 MB."""
    before = resident()
    slowest, _ = run(files, 33_334, seed=2)
    assert slowest < 1
    assert resident() - before < 50 * MIB


def resident() -> int:
    """VmHWM of this process, in bytes: the most it ever had."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
