"""Files nobody vouches for, over HTTP: refused by their fact within a second, or served as they are."""

import os
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from app.modelfile.limits import ReadLimits
from app.modelfile.reader import read_model_file
from tests.api.conftest import Small
from tests.api.test_app import require_problem
from tests.builders import shard_name, t0, t0_split
from tests.corpus import CORPUS, Bad, fresh
from tests.corpus_good import GOOD, Good
from tests.corpus_models import MODELS
from tests.daemon import Daemon, running_daemon

LIMITS = {
    "n_keys": 3,
    "n_tensors": 20,
    "n_shards": 2,
    "key_bytes": 10,
    "string_bytes": 4,
    "text_bytes": 100,
    "array_elements": 3,
    "array_strings": 3,
    "built_elements": 3,
    "header_bytes": 400,
}


@pytest.fixture
def anyio_backend() -> str:
    """The edge runs on asyncio."""
    return "asyncio"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of this module's daemon, with one good model."""
    root = tmp_path_factory.mktemp("hostile")
    t0(root / "good.gguf")
    return root


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    """One daemon that has to live through all of this."""
    flags = ("--model-roots", str(folder), "--host-capacity-bytes", "1GiB", "--host-devices", "2")
    with running_daemon(*flags) as running:
        yield running


@pytest.fixture(scope="module")
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    """Its client."""
    with httpx.Client(base_url=daemon.url, timeout=30) as client:
        load(client, "good.gguf", release=True)  # what is opened once for all is open now
        yield client


def load(http: httpx.Client, model: str, *, release: bool = False, **wishes: Any) -> httpx.Response:
    """Ask for a load and wait for it; with `release` it must succeed, and is given back."""
    response = http.post("/v1/handles", json={"model": model, **wishes}, headers={"Prefer": "wait=20"})
    if release:
        assert 200 == response.status_code, response.text
        assert http.delete(response.headers["location"]).json()["released_bytes"] > 0
    return response


def allocated(http: httpx.Client) -> dict[str, int]:
    """What each device holds now."""
    return {device["name"]: device["allocated_bytes"] for device in http.get("/v1/devices").json()["devices"]}


def open_files(daemon: Daemon) -> list[str]:
    """What the daemon's descriptors lead to, but for its connections."""
    found = []
    for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{daemon.pid}/fd/{fd}"))
        except FileNotFoundError:  # closed since it was listed
            continue
    return sorted(name for name in found if not name.startswith("socket:"))


@pytest.mark.parametrize("bad", [bad for bad in (*CORPUS, *MODELS) if bad.name != "device"], ids=lambda bad: bad.name)
def test_a_bad_file_is_told_by_its_fact_within_a_second(
    http: httpx.Client, daemon: Daemon, folder: Path, bad: Bad
) -> None:
    """Plan and load answer 422 with code, file and facts, each within a second; nothing is kept; good loads go on."""
    path = fresh(bad, folder)
    before = open_files(daemon)
    for call in ("/v1/plans", "/v1/handles"):
        started = time.monotonic()
        response = http.post(call, json={"model": str(path)}, headers={"Prefer": "wait=20"})
        assert time.monotonic() - started < 1
        body = require_problem(response, 422, bad.code)
        assert bad.says in body["detail"]
        assert body["file"].startswith(str(path.parent))
        assert dict(bad.facts) == {name: body.get(name) for name in bad.facts}
    assert 0 == sum(allocated(http).values())
    assert before == open_files(daemon)
    assert 200 == http.get("/healthz").status_code
    load(http, "good.gguf", release=True)


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.name)
def test_an_odd_file_is_served_as_it_is(http: httpx.Client, folder: Path, good: Good) -> None:
    """A file that is odd and fine is planned and loaded with a warning, and every byte comes back unchanged."""
    path = fresh(good, folder)
    model = read_model_file(path)
    plan = http.post("/v1/plans", json={"model": str(path)}).json()
    response = load(http, str(path), devices=["host0", "host1"])
    handle = response.json()
    assert (200, 1.0, good.nbytes) == (response.status_code, handle["progress"], plan["model"]["n_bytes"])
    assert sum(handle["planned_bytes"].values()) >= good.nbytes
    for warnings in (plan["warnings"], handle["warnings"]):
        assert bool(good.warns) == any(good.warns in warning for warning in warnings if good.warns)
    for tensor in model.tensors:
        with model.shards[tensor.shard].path.open("rb") as file:
            file.seek(tensor.offset)
            expected = file.read(tensor.nbytes)
        served = http.get(f"/v1/handles/{handle['id']}/tensors/{quote(tensor.name)}/data")
        assert expected == served.content, tensor.name
    http.delete(f"/v1/handles/{handle['id']}")
    assert 0 == sum(allocated(http).values())


def test_any_file_of_a_set_stands_for_the_same_model(http: httpx.Client, folder: Path) -> None:
    """Whichever file of a set is asked for, and by which path, it is the same model: the plan's id says so."""
    (folder / "set").mkdir()
    paths = [*t0_split(folder / "set", (13, 13, 13)), folder / "set"]
    assert 1 == len({http.post("/v1/plans", json={"model": str(path)}).json()["plan_id"] for path in paths})


def test_every_missing_file_of_a_set_is_named(http: httpx.Client, folder: Path) -> None:
    """A set that lacks files says which, all of them, whatever file was asked for."""
    (folder / "holes").mkdir()
    paths = t0_split(folder / "holes", (8, 8, 8, 8, 7))
    for number in (1, 3):
        paths[number].unlink()
    for number in (0, 2, 4):
        body = require_problem(load(http, str(paths[number])), 422, "split_missing")
        assert [shard_name("m", 1, 5), shard_name("m", 3, 5)] == body["missing"]


@pytest.mark.anyio
@pytest.mark.parametrize("limit", [field.name for field in fields(ReadLimits)])
async def test_a_lowered_limit_is_named_where_it_refuses(small: Small, root: Path, limit: str) -> None:
    """Every limit of the reader is a setting; a file over it is refused with the limit's name, its value, the fact."""
    place = root / "limits"
    place.mkdir(exist_ok=True)
    path = t0_split(place, (13, 13, 13))[0]
    if limit != "n_shards":
        path = t0(place / "m.gguf", set_keys={"a": [1, 2, 3, 4], "b": ["x", "y", "z", "w"]})
    async with small() as (client, _daemon):
        assert 200 == (await client.post("/v1/plans", json={"model": str(path)})).status_code
    async with small(**{f"limit_{limit}": str(LIMITS[limit])}) as (client, _daemon):
        for call, headers in (("/v1/plans", {}), ("/v1/handles", {"Prefer": "wait=10"})):
            response = await client.post(call, json={"model": str(path)}, headers=headers)
            body = require_problem(response, 422, "limit_exceeded")
            assert (limit, LIMITS[limit]) == (body["limit"], body["expected"])
            assert body["found"] > LIMITS[limit]
            assert limit in body["detail"]
