"""Embedding rows over HTTP against the bare conversion of the same rows, in the same run."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from app.ggml import BY_NAME
from tests.builders import build, llama_keys, llama_tensors
from tests.daemon import Daemon, running_daemon

ROWS, VOCABULARY, WIDTH, ROUNDS = 4096, 32_768, 1024, 15


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embeddings")


@pytest.fixture(scope="module")
def daemon(root: Path) -> Iterator[Daemon]:
    with running_daemon("--model-roots", str(root), "--log-level", "warning") as running:
        yield running


def _model(path: Path, kind: str) -> NDArray[np.uint8]:
    """A model whose token embedding has random bytes of the type `kind`; answers them, row by row."""
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, (VOCABULARY, BY_NAME[kind].row_bytes(WIDTH)), np.uint8)
    shapes = {"token_embd.weight": (WIDTH, VOCABULARY), "output.weight": (WIDTH, VOCABULARY)}
    build(
        path,
        {**llama_keys(1, embd=WIDTH, heads=16, kv=16), "llama.vocab_size": VOCABULARY},
        llama_tensors(1, embd=WIDTH, heads=16, kv=16),
        types={"token_embd.weight": kind, "output.weight": kind},
        shapes=shapes,
        data={"token_embd.weight": raw.tobytes()},
        seed=None,
    )
    return raw


def _own_seconds(response: httpx.Response) -> float:
    found = re.search(r"total;dur=([\d.]+)", response.headers["server-timing"])
    assert found is not None
    return float(found[1]) / 1000


@pytest.mark.bench
@pytest.mark.parametrize("load_mode", ["mmap", "none"])
@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_K", "q6_K", "iq4_xs"])
def test_rows_cost_little_more_than_their_conversion(
    daemon: Daemon, root: Path, kind: str, load_mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For 4,096 rows of a quantised embedding the daemon takes at most 1.3 times the gguf package's dequantise."""
    raw = _model(root / "m.gguf", kind)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, ROWS)
    package, own, whole = [], [], []
    with httpx.Client(base_url=daemon.url, timeout=60) as http, np.errstate(all="ignore"):
        body = {"model": "m.gguf", "load_mode": load_mode}
        handle = http.post("/v1/handles", json=body, headers={"Prefer": "wait=60"}).json()["id"]
        try:
            for _ in range(ROUNDS + 1):
                rows = raw[tokens]
                begin = time.perf_counter()
                expected = quants.dequantize(rows, GGMLQuantizationType[kind.upper()])
                package.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                answer = http.post(
                    f"/v1/handles/{handle}/embeddings", json={"tokens": tokens.tolist(), "format": "npy"}
                )
                whole.append(time.perf_counter() - begin)
                own.append(_own_seconds(answer))
                assert answer.content[-expected.nbytes :] == expected.tobytes()
        finally:
            http.delete(f"/v1/handles/{handle}")
    theirs, ours, seen = median(package[1:]), median(own[1:]), median(whole[1:])
    with capsys.disabled():
        print(
            f"\n{kind} {load_mode}: {ROWS} rows of {WIDTH}: {ours * 1e3:.1f} ms, the package alone"
            f" {theirs * 1e3:.1f} ms: {ours / theirs:.2f}x; {seen * 1e3:.1f} ms with the transport"
        )
    assert ours <= 1.3 * theirs
