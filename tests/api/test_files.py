"""Files nobody vouches for, and paths that lead where they may not, over HTTP."""

import os
import shutil
import time
import unicodedata
from pathlib import Path

import httpx
import pytest

from tests.api.test_app import require_problem
from tests.builders import t0
from tests.corpus import CORPUS, Bad, fresh


def ask_both(http: httpx.Client, model: str) -> tuple[httpx.Response, httpx.Response]:
    """A plan of `model`, and a load that is waited for."""
    return http.post("/v1/plans", json={"model": model}), http.post(
        "/v1/handles", json={"model": model}, headers={"Prefer": "wait=10"}
    )


@pytest.mark.parametrize("bad", [bad for bad in CORPUS if bad.name != "device"], ids=lambda bad: bad.name)
def test_a_bad_file_is_told_by_its_fact_within_a_second(http: httpx.Client, root: Path, bad: Bad) -> None:
    """Planning and loading a bad file answer 422 with its code and its facts, at once, and the daemon goes on."""
    path = fresh(bad, root / "corpus")
    try:
        started = time.monotonic()
        for response in ask_both(http, str(path)):
            body = require_problem(response, 422, bad.code)
            assert bad.says in body["detail"]
            assert dict(bad.facts) == {name: body.get(name) for name in bad.facts}
        assert time.monotonic() - started < 2
        assert http.get("/healthz").status_code == 200
    finally:
        shutil.rmtree(root / "corpus")


NO_MODELS = {
    "projector": ({"general.architecture": "clip", "general.type": "mmproj"}, "not_a_model"),
    "adapter": ({"general.type": "adapter"}, "not_a_model"),
    "unknown architecture": ({"general.architecture": "nosuch"}, "unsupported_architecture"),
    "no architecture": ({"general.architecture": None}, "unsupported_architecture"),
    "endless architecture": ({"general.architecture": "x" * 5000}, "unsupported_architecture"),
}


@pytest.mark.parametrize(("changes", "code"), NO_MODELS.values(), ids=NO_MODELS.keys())
def test_a_file_that_is_no_model_is_refused_with_the_reason(
    http: httpx.Client, root: Path, changes: dict[str, str | None], code: str
) -> None:
    """Projectors, adapters and unknown architectures are refused by what they are, in a short sentence."""
    t0(root / "other.gguf", set_keys=changes)
    for response in ask_both(http, "other.gguf"):
        assert len(require_problem(response, 422, code)["detail"]) < 300


def test_a_vocabulary_alone_is_no_model(http: httpx.Client, root: Path) -> None:
    """A file with keys and no tensors is refused as `no_tensors`."""
    path = t0(root / "vocabulary.gguf", drop=[f"{name}.weight" for name in _every_name()])
    for response in ask_both(http, path.name):
        require_problem(response, 422, "no_tensors")


def _every_name() -> list[str]:
    blocks = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    return ["token_embd", "output_norm", "output", *(f"blk.{layer}.{name}" for layer in (0, 1) for name in blocks)]


def test_tensors_that_are_missing_or_too_many_are_named(http: httpx.Client, root: Path) -> None:
    """A missing tensor and one nobody knows are refused by name, and the problem is never mistaken for a plan."""
    t0(root / "missing.gguf", drop=["blk.1.ffn_norm.weight"])
    assert (
        "blk.1.ffn_norm.weight" == require_problem(ask_both(http, "missing.gguf")[0], 422, "missing_tensor")["tensor"]
    )
    name, kind, shape = ("blk.0.foo.weight", "f32", (8,))
    from app.ggml import BY_NAME

    t0(root / "extra.gguf", add=[(name, BY_NAME[kind], shape)])
    body = require_problem(ask_both(http, "extra.gguf")[0], 422, "unexpected_tensor")
    assert name == body["tensor"]
    assert "tensors" not in body


def outside_and_missing(http: httpx.Client, outside: str, missing: str) -> None:
    """Both calls answer for `outside` what they answer for `missing`, but for the path that was asked for."""
    for there, nowhere in zip(ask_both(http, outside), ask_both(http, missing), strict=True):
        require_problem(there, 404, "model_not_found")
        assert nowhere.content.replace(missing.encode(), b"*") == there.content.replace(outside.encode(), b"*")
        assert {k: v for k, v in nowhere.headers.items() if k not in ("content-length", "date")} == {
            k: v for k, v in there.headers.items() if k not in ("content-length", "date")
        }


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc", "/etc/../etc/passwd", "/proc/self/exe", "/dev/zero"])
def test_a_path_outside_the_roots_answers_as_if_it_were_not_there(http: httpx.Client, path: str) -> None:
    """Nobody learns from the answer whether something exists outside the roots."""
    outside_and_missing(http, path, "/etc/no-such-file")


def test_the_roots_cannot_be_left(http: httpx.Client, root: Path, tmp_path: Path) -> None:
    """Neither dots nor links nor a root's name as a prefix lead out; what lies outside seems not to be there."""
    t0(tmp_path / "outside.gguf")
    sibling = root.parent / f"{root.name}-sibling"
    sibling.mkdir(exist_ok=True)
    t0(sibling / "outside.gguf")
    (root / "link.gguf").symlink_to(tmp_path / "outside.gguf")
    (root / "folder").symlink_to(tmp_path)
    dots = "/".join([".."] * 30)
    for path in (
        str(tmp_path / "outside.gguf"),
        str(sibling / "outside.gguf"),
        f"{dots}{tmp_path}/outside.gguf",
        f"{root}/../{sibling.name}/outside.gguf",
        "link.gguf",
        "folder/outside.gguf",
        "folder",
        "..",
        "/",
    ):
        outside_and_missing(http, path, "no-such-model.gguf")


@pytest.mark.parametrize(
    "path", ["~/x.gguf", "%2e%2e/x.gguf", "file:x.gguf", "x" * 300, "a/" * 2000 + "x", "a\nb.gguf"]
)
def test_a_strange_path_is_a_path_like_any_other(http: httpx.Client, path: str) -> None:
    """Nothing in a path is expanded, decoded or cut; it is looked for as it is, and not found."""
    for response in ask_both(http, path):
        require_problem(response, 404, "model_not_found")


@pytest.mark.parametrize(
    "name",
    [
        "with space.gguf",
        "per%20cent.gguf",
        "hash#.gguf",
        "line\nfeed.gguf",
        unicodedata.normalize("NFC", "é.gguf"),
        unicodedata.normalize("NFD", "é.gguf"),
        "模型.gguf",
        "'quoted\".gguf",
    ],
)
def test_a_strange_name_is_loaded_under_that_name(http: httpx.Client, root: Path, name: str) -> None:
    """Spaces, escapes, line feeds, both forms of accents and other scripts are names like any other."""
    t0(root / name)
    response = http.post("/v1/handles", json={"model": name}, headers={"Prefer": "wait=10"})
    assert 200 == response.status_code
    assert name == response.json()["model"]


def test_a_name_that_is_not_utf8_is_refused_cleanly(http: httpx.Client, root: Path) -> None:
    """JSON cannot carry a name of arbitrary bytes: asking for one is a malformed request, not a crash."""
    t0(Path(os.fsdecode(os.fsencode(root) + b"/\xff.gguf")))
    response = http.post(
        "/v1/plans", content=b'{"model": "\\udcff.gguf"}', headers={"Content-Type": "application/json"}
    )
    require_problem(response, 400, "bad_request")


def test_a_fifo_blocks_nobody(http: httpx.Client, root: Path) -> None:
    """A FIFO is told by a look, before it is opened: every request is answered at once, and no thread is stuck."""
    os.mkfifo(root / "fifo.gguf")
    started = time.monotonic()
    for _ in range(10):
        for response in ask_both(http, "fifo.gguf"):
            require_problem(response, 422, "not_regular_file")
    assert time.monotonic() - started < 2


def test_a_linked_model_under_a_root_is_loaded(http: httpx.Client, root: Path) -> None:
    """A link that stays under the roots, as the caches of model hubs are full of, is followed."""
    (root / "blobs").mkdir()
    t0(root / "blobs" / "0123abcd")
    (root / "linked.gguf").symlink_to("blobs/0123abcd")
    assert [200, 200] == [response.status_code for response in ask_both(http, "linked.gguf")]
