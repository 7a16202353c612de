"""Metadata that fits its tensors or does not, over HTTP: what is refused, what is loaded, and where its bytes go."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.test_app import require_problem
from tests.builders import F32, t0, tp
from tests.corpus import Bad, fresh
from tests.metadata_cases import ACCEPTED, REFUSED, Accepted, tied

MIB = 1 << 20


@pytest.fixture
def folder(root: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder under the root for one test's files."""
    place = root / f"cases-{abs(hash(request.node.name))}"
    place.mkdir()
    yield place
    for path in place.iterdir():
        path.unlink()
    place.rmdir()


def planned(http: httpx.Client, path: Path, **wishes: Any) -> dict[str, Any]:
    """The plan of a model, on declared devices of plenty; `devices` says how many."""
    count = wishes.pop("devices")
    declared = [{"name": f"d{index}", "kind": "simulated", "memory_bytes": 64 * MIB} for index in range(count)]
    response = http.post("/v1/plans", json={"model": str(path), "devices": declared, **wishes})
    assert 200 == response.status_code, response.text
    plan: dict[str, Any] = response.json()
    return plan


def weights(plan: dict[str, Any]) -> dict[str, int]:
    """Bytes of weights per device."""
    return {device["name"]: device["weights_bytes"] for device in plan["devices"]}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_metadata_that_does_not_fit_is_refused(http: httpx.Client, root: Path, case: Bad) -> None:
    """Plan and load answer 422 with the code and the facts, at once; the file is still described, and says the same."""
    path = fresh(case, root)
    for call in ("/v1/plans", "/v1/handles"):
        started = time.monotonic()
        body = require_problem(
            http.post(call, json={"model": str(path)}, headers={"Prefer": "wait=10"}), 422, case.code
        )
        assert time.monotonic() - started < 1
        assert case.says in body["detail"]
        assert dict(case.facts) == {name: body.get(name) for name in case.facts}
    found = http.get(f"/v1/files/{path}").json()
    assert (False, case.code) == (found["loadable"], found["problem"]["code"])
    assert dict(case.facts) == {name: found["problem"].get(name) for name in case.facts}
    assert found["metadata"]
    assert len(found["tensors"]) == found["n_tensors"]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
def test_metadata_that_fits_is_loaded(http: httpx.Client, folder: Path, case: Accepted) -> None:
    """The model is loaded, with the facts that follow and exactly its bytes; progress ends at 1."""
    path = case.build(folder)
    response = http.post(
        "/v1/handles", json={"model": str(path), "devices": ["host0", "host1"]}, headers={"Prefer": "wait=10"}
    )
    assert 200 == response.status_code, response.text
    handle = response.json()
    assert ("ready", 1.0) == (handle["state"], handle["progress"])
    facts = http.get(f"/v1/handles/{handle['id']}/plan").json()["model"]
    assert case.nbytes == facts["n_bytes"]
    assert dict(case.facts) == {name: facts[name] for name in case.facts}
    found = http.get(f"/v1/files/{path}").json()
    assert (True, None, facts) == (found["loadable"], found["problem"], found["model"])
    assert [[], [], []] == [found[name] for name in ("missing", "wrong", "extra")]


def test_a_rotary_table_goes_to_every_device_with_layers(http: httpx.Client, folder: Path) -> None:
    """Of the one table in the file each device that holds layers gets a copy."""
    path = t0(folder / "m.gguf", 4, add=[("rope_freqs.weight", F32, (8,))])
    plan = planned(http, path, devices=2, split_mode="layer", tensor_split=[1, 1])
    found = weights(plan)
    assert (443_936, 156_448) == (found["d0"], found["d1"])
    copies = [one["device"] for one in plan["tensors"] if one["name"] == "rope_freqs.weight"]
    assert ["d0", "d1"] == sorted(set(copies))


@pytest.mark.parametrize(
    ("layers", "devices", "shares"),
    [
        (2, 2, [16001, 16002]),
        (3, 2, [16002, 16001]),
        (3, 3, [10667, 10668, 10668]),
        (2, 3, [10668, 10668, 10667]),
    ],
)
def test_an_odd_vocabulary_is_split(
    http: httpx.Client, folder: Path, layers: int, devices: int, shares: list[int]
) -> None:
    """The output is cut at any row, turned by the number of layers; the embedding stays whole on the host."""
    shapes = dict.fromkeys(("token_embd.weight", "output.weight"), (64, 32003))
    path = tp(folder / "m.gguf", 2, 512, layers, shapes=shapes, set_keys={"llama.vocab_size": 32003}, seed=None)
    plan = planned(http, path, devices=devices, split_mode="tensor")
    by_name = {one["name"]: one for one in plan["tensors"]}
    output, embedding = by_name["output.weight"], by_name["token_embd.weight"]
    assert (1, [{"extents": shares, "repeats": 1}]) == (output["axis"], output["segments"])
    assert (None, "host") == (embedding["axis"], embedding["device"])


def test_a_tied_output_is_counted_where_it_is(http: httpx.Client, folder: Path) -> None:
    """No second copy on the host; one where the output is on a device; one on each device in tensor mode."""
    path = tied(folder / "m.gguf")
    alone = planned(http, path, devices=1, n_gpu_layers=0)
    assert 600_320 == sum(weights(alone).values())
    one = weights(planned(http, path, devices=1))
    assert {"host": 8192, "d0": 600_320} == one
    for count in (2, 3):
        plan = planned(http, path, devices=count, split_mode="tensor")
        copies = [one for one in plan["tensors"] if one["name"] == "token_embd.weight"]
        assert ["host", None] == [one["device"] for one in copies]
        assert ("mirrored", [8192] * count) == (copies[1]["axis"], copies[1]["bytes_per_device"])
        norms = 8192 * (count - 1) + (4 * 2 + 1) * 256 * (count - 1)
        assert 608_512 + norms == sum(weights(plan).values())


def test_the_second_copy_of_a_tied_output_is_part_of_the_progress(http: httpx.Client, folder: Path) -> None:
    """Everything that is placed is counted once: progress ends at exactly 1, with as many bytes as were planned."""
    body = {"model": str(tied(folder / "m.gguf")), "devices": ["sim0"], "load_mode": "none"}
    handle = http.post("/v1/handles", json=body, headers={"Prefer": "wait=10"}).json()
    assert ("ready", 1.0, 608_512) == (handle["state"], handle["progress"], sum(handle["planned_bytes"].values()))
