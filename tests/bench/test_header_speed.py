"""How fast headers are read, against the gguf package's reader in the same run."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from app.modelfile.reader import read_model_file
from app.modelfile.types import ValueType
from app.modelfile.vocabulary import check_vocabulary
from app.modelfile.writer import Typed
from tests.builders import t0

TOKENS = 262_144


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 262,144 tokens: the one that GGUFD_BENCH_MODEL names, or a small one with as long a vocabulary."""
    name = os.environ.get("GGUFD_BENCH_MODEL")
    if name:
        return Path(name)
    tokens = Typed(ValueType.STRING, [f"▁token{index}" for index in range(TOKENS)], array=True)
    scores = Typed(ValueType.F32, [0.0] * TOKENS, array=True)
    types = Typed(ValueType.I32, [1] * TOKENS, array=True)
    return t0(
        tmp_path_factory.mktemp("bench") / "m.gguf",
        set_keys={
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": types,
        },
    )


def seconds(act: Callable[[], object]) -> float:
    """How long an act takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


@pytest.mark.bench
def test_a_large_vocabulary_is_read_at_once(
    large_vocabulary: Path, record_property: Callable[[str, object], None]
) -> None:
    """A header with 262,144 tokens is read and checked in under 100 ms, fifty times faster than by the gguf package."""
    ours, theirs = [], []
    for _ in range(3):
        ours += [seconds(lambda: check_vocabulary(read_model_file(large_vocabulary))) for _ in range(5)]
        theirs.append(seconds(lambda: gguf.GGUFReader(large_vocabulary)))
    mine, other = statistics.median(ours), statistics.median(theirs)
    record_property("header_seconds", mine)
    record_property("gguf_reader_seconds", other)
    print(f"\n{large_vocabulary.name}: {mine * 1e3:.1f} ms, gguf {other:.2f} s, {other / mine:.0f} times")
    assert mine < 0.1
    assert other / mine > 50
