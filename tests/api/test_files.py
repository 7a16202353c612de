"""`/v1/files` over HTTP: what lies under the roots, and what each file is."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.main import Daemon, build, main
from app.settings import read_settings
from tests.api.test_app import require_problem
from tests.builders import F32, llama_keys, t0, t0_split, vocabulary
from tests.builders import build as build_file
from tests.corpus import CORPUS, Bad, fresh
from tests.corpus_good import GOOD, Good
from tests.corpus_models import MODELS


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon in this process whose root is the test's folder."""
    made = build(read_settings({}, {"model_roots": str(tmp_path), "host_capacity_bytes": "1GiB"}))
    yield made
    assert made.service.close(10)


Ask = Callable[..., httpx.Response]


def within(daemon: Daemon, talk: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """What `talk` comes to, with a client of the daemon."""

    async def run() -> Any:
        transport = httpx.ASGITransport(daemon.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://ggufd") as client:
            return await talk(client)

    return asyncio.run(run())


@pytest.fixture
def ask(daemon: Daemon) -> Ask:
    """Asks for a path."""

    def get(path: str, **parameters: Any) -> httpx.Response:
        response: httpx.Response = within(daemon, lambda client: client.get(path, params=parameters or None))
        return response

    return get


def test_the_listing_has_every_model(ask: Ask, tmp_path: Path) -> None:
    """Models, sets and broken files are listed in order, each with what a client needs to choose."""
    (tmp_path / "sub").mkdir()
    t0(tmp_path / "sub" / "good.gguf")
    t0_split(tmp_path, (13, 13, 13), prefix="set")
    (tmp_path / "broken.gguf").write_bytes(b"<html>")
    body = ask("/v1/files").json()
    assert (3, 0, None, False, []) == tuple(
        body[name] for name in ("count", "offset", "next", "truncated", "limits_met")
    )
    broken, whole, good = body["files"]
    assert ("broken.gguf", False, "bad_magic") == (broken["path"], broken["loadable"], broken["problem"]["code"])
    assert ("set-00001-of-00003.gguf", 3, True) == (whole["path"], whole["files"], whole["loadable"])
    assert ("sub/good.gguf", "llama", None) == (good["path"], good["architecture"], good["problem"])
    assert 0 <= good["page_cache"]["resident_fraction"] <= 1


def test_pages_lead_to_each_other(ask: Ask, tmp_path: Path) -> None:
    """`next` leads through all pages, and each entry's `details` to the file."""
    for number in range(5):
        t0(tmp_path / f"{number} %2e%2f#é\n.gguf")
    paths: list[str] = []
    following: str | None = "/v1/files?limit=2"
    while following:
        body = ask(following).json()
        for entry in body["files"]:
            described = ask(entry["details"]).json()
            assert entry["path"] == described["path"]
            page = ask(f"{entry['details']}?limit=15").json()
            second = ask(page["next"]).json()
            assert described["tensors"] == [*page["tensors"], *second["tensors"]]
            paths.append(entry["path"])
        following = body["next"]
    assert [f"{number} %2e%2f#é\n.gguf" for number in range(5)] == paths


def test_a_path_of_the_listing_is_one_that_loads(daemon: Daemon, tmp_path: Path) -> None:
    """What the listing calls a file, a plan and a description call it too; an absolute path will do as well."""
    t0(tmp_path / "m.gguf")

    async def talk(client: httpx.AsyncClient) -> list[int]:
        listed = (await client.get("/v1/files")).json()["files"][0]["path"]
        answers = [await client.post("/v1/plans", json={"model": listed})]
        answers += [await client.get(f"/v1/files/{path}") for path in (listed, tmp_path / "m.gguf")]
        return [answer.status_code for answer in answers]

    assert [200, 200, 200] == within(daemon, talk)


def test_one_file_has_everything(ask: Ask, tmp_path: Path) -> None:
    """Facts, metadata with long arrays begun, tensors with their roles, and no disagreement."""
    t0(tmp_path / "m.gguf", set_keys={**vocabulary(32), "long": "x" * 5000})
    body = ask("/v1/files/m.gguf").json()
    assert (True, None, "llama", 3) == tuple(body[name] for name in ("loadable", "problem", "architecture", "version"))
    assert {"missing": 0, "wrong": 0, "extra": 0, "unused": 0} == body["counts"]
    assert [2, 2] == body["model"]["n_head_kv"]
    by_key = {entry["key"]: entry for entry in body["metadata"]}
    tokens = by_key["tokenizer.ggml.tokens"]
    assert (32, [f"t{index}" for index in range(8)], False) == (tokens["count"], tokens["value"], tokens["complete"])
    assert (5000, 1000) == (by_key["long"]["count"], len(by_key["long"]["value"]))
    query = next(one for one in body["tensors"] if one["name"] == "blk.1.attn_q.weight")
    assert ("attn_q", 1, [64, 64], 0) == tuple(query[name] for name in ("role", "layer", "shape", "file"))


def test_tensors_come_in_pages_and_by_name_and_type(ask: Ask, tmp_path: Path) -> None:
    """A page of the tensors, those with a word in their name, those of a type; a type that none has is refused."""
    t0(tmp_path / "m.gguf", types={"output.weight": "f16"})
    page = ask("/v1/files/m.gguf", offset=2, limit=2).json()
    assert (21, 2, ["output.weight", "blk.0.attn_norm.weight"]) == (
        page["count"],
        page["offset"],
        [one["name"] for one in page["tensors"]],
    )
    assert 5 == ask("/v1/files/m.gguf", name="blk.0.attn").json()["count"]
    assert ["output.weight"] == [one["name"] for one in ask("/v1/files/m.gguf", type="f16").json()["tensors"]]
    assert "f16, f32" in require_problem(ask("/v1/files/m.gguf", type="q4_K"), 400, "bad_request")["detail"]


def test_disagreements_are_listed(ask: Ask, tmp_path: Path) -> None:
    """What is missing, of a wrong shape, unknown or never loaded is listed, with what was expected and found."""
    t0(
        tmp_path / "m.gguf",
        drop={"blk.1.ffn_norm.weight"},
        shapes={"blk.0.attn_k.weight": (64, 48)},
        add=[("blk.0.foo.weight", F32, (8,))],
    )
    body = ask("/v1/files/m.gguf").json()
    assert "wrong_shape" == body["problem"]["code"]
    assert 422 == body["problem"]["status"]
    assert [("blk.1.ffn_norm.weight", [64])] == [(one["name"], one["expected"]) for one in body["missing"]]
    assert [("blk.0.attn_k.weight", [64, 32], [64, 48])] == [
        (one["name"], one["expected"], one["found"]) for one in body["wrong"]
    ]
    assert [("blk.0.foo.weight", "f32", [8])] == [(one["name"], one["type"], one["shape"]) for one in body["extra"]]
    assert [] == body["unused"]


def test_many_disagreements_are_counted_and_cut(ask: Ask, tmp_path: Path) -> None:
    """However many tensors are not known, the answer has a thousand of them and the count of all."""
    t0(tmp_path / "m.gguf", add=[(f"x{number}", F32, (1,)) for number in range(1500)])
    body = ask("/v1/files/m.gguf", limit=10).json()
    assert (1500, 1000, 10) == (body["counts"]["extra"], len(body["extra"]), len(body["tensors"]))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"general.architecture": "clip", "general.type": "mmproj"}, "not_a_model"),
        ({"general.type": "adapter"}, "not_a_model"),
        ({"general.architecture": "nosuch"}, "unsupported_architecture"),
        ({"general.architecture": None}, "unsupported_architecture"),
        ({"general.architecture": 7}, "wrong_key_type"),
    ],
)
def test_what_is_no_model_is_listed_all_the_same(ask: Ask, tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    """A projector, an adapter or an unknown architecture has its metadata and tensors, and says why it cannot load."""
    t0(tmp_path / "m.gguf", set_keys=changes)
    body = ask("/v1/files/m.gguf").json()
    assert (False, code, 21) == (body["loadable"], body["problem"]["code"], len(body["tensors"]))
    assert "llama.block_count" in [entry["key"] for entry in body["metadata"]]
    assert (None, None, {None}) == (body["model"], body["missing"], {*body["counts"].values()})


def test_a_vocabulary_is_listed(ask: Ask, tmp_path: Path) -> None:
    """A file of keys alone has its keys."""
    build_file(tmp_path / "m.gguf", {**llama_keys(2), **vocabulary()}, [])
    body = ask("/v1/files/m.gguf").json()
    assert ("no_tensors", 0, None) == (body["problem"]["code"], body["n_tensors"], body["quantisation"])
    assert "tokenizer.ggml.tokens" in [entry["key"] for entry in body["metadata"]]


def test_a_broken_file_has_its_problem(ask: Ask, tmp_path: Path) -> None:
    """Of a file whose header cannot be read, the size and the problem are told, and the rest is null."""
    whole = t0(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:300])
    body = ask("/v1/files/m.gguf").json()
    assert (False, "truncated", 300) == (body["loadable"], body["problem"]["code"], body["size_bytes"])
    assert {None} == {body[name] for name in ("version", "model", "metadata", "missing", "n_tensors")}
    assert (0, []) == (body["count"], body["tensors"])


def test_a_set_is_described_from_any_of_its_files(ask: Ask, tmp_path: Path) -> None:
    """Each file of a set, and the folder, stand for the whole."""
    (tmp_path / "set").mkdir()
    paths = t0_split(tmp_path / "set", (13, 13, 13))
    for path in (*paths, tmp_path / "set"):
        body = ask(f"/v1/files/{path.relative_to(tmp_path)}").json()
        assert (3, 39, True) == (len(body["files"]), body["count"], body["loadable"])
    assert {0, 1, 2} == {one["file"] for one in body["tensors"]}


def test_outside_and_missing_are_the_same(ask: Ask, tmp_path: Path) -> None:
    """Nobody learns what lies outside the roots: the answer is that of a file which is not there."""
    outside = t0(tmp_path.parent / f"{tmp_path.name}-secret.gguf")
    (tmp_path / "link.gguf").symlink_to(outside)
    try:
        missing = ask("/v1/files/none.gguf")
        require_problem(missing, 404, "model_not_found")
        for path in (str(outside), "link.gguf", "%2e%2e/" + outside.name, "/etc/passwd", "a%00b"):
            answer = ask(f"/v1/files/{path}")
            require_problem(answer, 404, "model_not_found")
            if "%" not in path:
                assert missing.text.replace("none.gguf", "*") == answer.text.replace(path, "*")
        assert [] == ask("/v1/files").json()["files"]
    finally:
        outside.unlink()


def test_what_is_no_file_is_refused(ask: Ask, tmp_path: Path) -> None:
    """A FIFO is told by a look, and blocks nobody."""
    os.mkfifo(tmp_path / "fifo.gguf")
    require_problem(ask("/v1/files/fifo.gguf"), 422, "not_regular_file")
    assert 0 == ask("/v1/files").json()["count"]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "offset=-1", "what=1", "limit=1&limit=2"])
def test_odd_parameters_are_refused(ask: Ask, query: str) -> None:
    """Pages have bounds, and no parameter is ignored."""
    require_problem(ask(f"/v1/files?{query}"), 400, "bad_request")


def test_a_huge_tree_is_answered_within_a_second(ask: Ask, tmp_path: Path) -> None:
    """Five thousand files: a page comes at once, says how many there are, and leads on."""
    original = t0(tmp_path / "m.gguf")
    for number in range(5000):
        if number % 500 == 0:
            (tmp_path / str(number // 500)).mkdir()
        os.link(original, tmp_path / str(number // 500) / f"{number:04}.gguf")
    for query in ("", "?offset=4900&limit=1000"):
        started = time.monotonic()
        body = ask(f"/v1/files{query}").json()
        assert time.monotonic() - started < 1
        assert body["count"] == 5001 or body["truncated"]
        assert body["files"]
        assert bool(body["next"]) == (body["offset"] + len(body["files"]) < body["count"])


def test_files_are_never_read_in_the_event_loop(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file system takes its time, other requests are answered."""
    t0(tmp_path / "m.gguf")
    going, gate, original = threading.Event(), threading.Event(), os.scandir

    def slow(folder: int) -> Iterator[os.DirEntry[str]]:
        going.set()
        assert gate.wait(10)
        return original(folder)

    async def talk(client: httpx.AsyncClient) -> tuple[int, int]:
        listing = asyncio.ensure_future(client.get("/v1/files"))
        while not going.is_set():
            await asyncio.sleep(0.01)
        alive = await asyncio.wait_for(client.get("/healthz"), 1)
        gate.set()
        return alive.status_code, (await listing).status_code

    monkeypatch.setattr("app.modelfile.finding.os.scandir", slow)
    assert (200, 200) == within(daemon, talk)


def test_inspect_says_the_same(ask: Ask, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """The command line describes a file as the daemon does, but for its path, and what only a daemon has."""

    path = t0(tmp_path / "m.gguf", drop={"blk.1.ffn_norm.weight"}, set_keys=vocabulary())
    assert 0 == main(["inspect", "--json", str(path)])
    said = json.loads(capsysbinary.readouterr().out)
    served = ask("/v1/files/m.gguf").json()
    for name in ("page_cache", "count", "offset", "next"):
        del served[name]
    assert {**served, "path": str(path)} == said


def test_whatever_lies_there_is_listed_with_its_fact(ask: Ask, tmp_path: Path) -> None:
    """Every kind of bad file stands in the list with the code that a load would be refused with; odd ones can load."""
    expected: dict[str, str | None] = {}
    everything: tuple[Bad | Good, ...] = (*CORPUS, *MODELS, *GOOD)
    for one in everything:
        if one.name != "device":
            fresh(one, tmp_path)
            expected[one.name] = one.code if isinstance(one, Bad) else None
    found: dict[str, Any] = {}
    following: str | None = "/v1/files?limit=1000"
    while following:
        started = time.monotonic()
        answer = ask(following)
        assert (200, True) == (answer.status_code, time.monotonic() - started < 2)
        for entry in answer.json()["files"]:
            problem = entry["problem"]
            assert entry["loadable"] == (problem is None)
            found.setdefault(entry["path"].split("/")[0], []).append(problem and problem["code"])
        following = answer.json()["next"]
    several = {"folder-of-two": [None, None], "renamed": ["split_missing", "split_name"]}
    assert {name: several.get(name, [code]) for name, code in expected.items() if name in found} == found
    unlisted = expected.keys() - found.keys()
    assert {"fifo", "socket", "empty-folder"} <= unlisted
    assert not [path for name in unlisted for path in (tmp_path / name).rglob("*.gguf") if path.is_file()]
