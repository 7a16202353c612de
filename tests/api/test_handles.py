"""The life of a handle, over HTTP, against a real daemon."""

import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from app.loading.lifecycle import STAGES
from tests.api.conftest import MIB, Small
from tests.api.test_app import require_problem
from tests.builders import build, llama_keys, llama_tensors, t0
from tests.daemon import Daemon, running_daemon

pytestmark = pytest.mark.anyio
SEVENTEEN = [{"name": f"d{index}", "memory_bytes": 1 << 30} for index in range(17)]


@pytest.fixture
def anyio_backend() -> str:
    """The edge runs on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def model(root: Path) -> str:
    """T0(2): 312,576 bytes of tensors."""
    t0(root / "t0.gguf")
    return "t0.gguf"


@pytest.fixture(scope="session")
def slow(root: Path) -> str:
    """A model of 1 GiB, mostly a hole: long enough on a slow device to be caught loading."""
    shape = {"ff": 1 << 20}
    build(root / "slow.gguf", llama_keys(2, **shape), llama_tensors(2, **shape), seed=None)
    return "slow.gguf"


def post(http: httpx.Client, body: dict[str, Any], **headers: str) -> httpx.Response:
    """Ask for a load; `wait="5"` is `Prefer: wait=5`."""
    wait = headers.pop("wait", None)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post("/v1/handles", json=body, headers=named | ({} if wait is None else {"Prefer": f"wait={wait}"}))


def until(http: httpx.Client, handle_id: str, *states: str, seconds: float = 10) -> dict[str, Any]:
    """The handle once it is in one of `states`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        handle = cast(dict[str, Any], http.get(f"/v1/handles/{handle_id}").json())
        if handle["state"] in states:
            return handle
        time.sleep(0.01)
    raise AssertionError(f"{handle_id} is {handle['state']}, not {states}")


def listed(http: httpx.Client) -> list[dict[str, Any]]:
    """Every handle that can be read."""
    return cast(list[dict[str, Any]], http.get("/v1/handles?limit=10000").json()["handles"])


def allocated(http: httpx.Client) -> dict[str, int]:
    """What each device holds now."""
    return {device["name"]: device["allocated_bytes"] for device in http.get("/v1/devices").json()["devices"]}


def test_a_load_is_accepted_and_ends_ready(http: httpx.Client, model: str) -> None:
    """202 with a Location and a queued handle; later it is ready, with its plan, its bytes and its load mode."""
    accepted = post(http, {"model": model, "split_mode": "tensor", "devices": ["host0", "host1"]})
    assert (202, "queued") == (accepted.status_code, accepted.json()["state"])
    handle = until(http, accepted.json()["id"], "ready")
    assert f"/v1/handles/{handle['id']}" == accepted.headers["location"]
    assert (1.0, None, None) == (handle["progress"], handle["error"], handle["lease"])
    assert handle["planned_bytes"] == handle["allocated_bytes"]
    assert {"host", "host0", "host1"} == handle["allocated_bytes"].keys()
    assert {"host", "host0", "host1"} == {reason["device"] for reason in handle["load_mode"]["reasons"]}
    plan = http.get(f"/v1/handles/{handle['id']}/plan").json()
    assert handle["planned_bytes"] == {device["name"]: device["total_bytes"] for device in plan["devices"]}


def test_stage_times_add_up_to_the_load(http: httpx.Client, model: str) -> None:
    """Every stage is there in order, and together they last exactly as long as the load."""
    handle = post(http, {"model": model, "devices": ["host0"]}, wait="10").json()
    assert [stage.value for stage in STAGES] == [stage["stage"] for stage in handle["stages"]]
    assert handle["duration_seconds"] == pytest.approx(sum(stage["seconds"] for stage in handle["stages"]), abs=1e-9)


def test_waiting_answers_when_the_load_is_ready(http: httpx.Client, model: str) -> None:
    """`Prefer: wait` answers 200 with a ready handle as soon as there is one, and says that it was honoured."""
    started = time.monotonic()
    response = post(http, {"model": model, "devices": ["host0"]}, wait="20")
    assert (200, "ready", "wait=20") == (
        response.status_code,
        response.json()["state"],
        response.headers["preference-applied"],
    )
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("preference", ["wait=soon", "respond-async", "", "wait=-1", "wait"])
def test_a_preference_that_makes_no_sense_is_ignored(http: httpx.Client, model: str, preference: str) -> None:
    """What cannot be understood as a wish to wait is none."""
    response = post(http, {"model": model, "devices": ["host0"]}, Prefer=preference)
    assert (202, None) == (response.status_code, response.headers.get("preference-applied"))


def test_waiting_in_vain_answers_with_the_handle_as_it_is(http: httpx.Client, slow: str) -> None:
    """A load that is not done in time answers 202 with its state so far, and goes on."""
    response = post(http, {"model": slow, "devices": ["slow"], "load_mode": "none"}, wait="0.5")
    assert (202, "transferring") == (response.status_code, response.json()["state"])


def test_waiting_takes_no_thread(http: httpx.Client, child: Daemon, model: str, slow: str) -> None:
    """While more clients wait than the daemon has threads, it answers others as ever."""
    body = {"model": slow, "devices": ["slow"], "load_mode": "none"}
    waiting = [threading.Thread(target=_wait, args=(child.url, body, 3)) for _ in range(20)]
    for thread in waiting:
        thread.start()
    time.sleep(0.5)
    started = time.monotonic()
    assert 200 == http.get("/v1/devices").status_code
    assert 200 == http.post("/v1/plans", json={"model": model, "devices": ["host0"]}).status_code
    took = time.monotonic() - started
    for handle in listed(http):
        http.delete(f"/v1/handles/{handle['id']}")
    for thread in waiting:
        thread.join()
    assert took < 1


def _wait(url: str, body: dict[str, Any], seconds: int) -> None:
    httpx.post(f"{url}/v1/handles", json=body, headers={"Prefer": f"wait={seconds}"}, timeout=30)


def test_a_client_that_goes_away_is_not_waited_for(http: httpx.Client, child: Daemon, slow: str) -> None:
    """A request whose client breaks off while it waits ends at once; the load goes on."""

    def answered() -> float:
        series = 'ggufd_http_request_duration_seconds_count{code="202",method="POST",route="/v1/handles"} '
        return float(http.get("/metrics").text.partition(series)[2].partition("\n")[0])

    before = answered()
    body = {"model": slow, "devices": ["slow"], "load_mode": "none"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{child.url}/v1/handles", json=body, headers={"Prefer": "wait=20"}, timeout=0.5)
    end = time.monotonic() + 3
    while answered() == before:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "transferring" == listed(http)[-1]["state"]


def test_a_load_that_fails_while_a_client_waits_is_its_problem(http: httpx.Client, root: Path) -> None:
    """The failure's own status and code, with the handle's id and place; the handle tells the same later."""
    (root / "cut.gguf").write_bytes((t0(root / "whole.gguf")).read_bytes()[:200])
    response = post(http, {"model": "cut.gguf"}, wait="10")
    body = require_problem(response, 422, "truncated")
    location = f"/v1/handles/{body['handle_id']}"
    assert (location, location, "reading") == (response.headers["location"], body["instance"], body["stage"])
    handle = http.get(location).json()
    assert "failed" == handle["state"]
    assert handle["error"] == {name: value for name, value in body.items() if name != "handle_id"}


def test_releasing_gives_everything_back_and_says_how_much(http: httpx.Client, model: str) -> None:
    """DELETE frees what the handle held, answers the bytes, and answers the same again."""
    before = allocated(http)
    handle = post(http, {"model": model, "split_mode": "tensor", "devices": ["host0", "host1"]}, wait="10").json()
    assert before != allocated(http)
    released = http.delete(f"/v1/handles/{handle['id']}")
    assert (200, "released") == (released.status_code, released.json()["state"])
    assert sum(handle["allocated_bytes"].values()) == released.json()["released_bytes"]
    assert before == allocated(http)
    assert released.json() == http.delete(f"/v1/handles/{handle['id']}").json()
    assert "released" == http.get(f"/v1/handles/{handle['id']}").json()["state"]


def test_releasing_a_load_under_way_cancels_it(http: httpx.Client, slow: str) -> None:
    """DELETE while bytes move ends the load within two seconds, and nothing of it stays on a device."""
    before = allocated(http)
    handle = post(http, {"model": slow, "devices": ["slow"], "load_mode": "none"}, wait="0.5").json()
    started = time.monotonic()
    released = http.delete(f"/v1/handles/{handle['id']}").json()
    assert time.monotonic() - started < 2
    assert "cancelled" == released["state"]
    assert before == allocated(http)
    ended = http.get(f"/v1/handles/{handle['id']}").json()
    assert ("cancelled", "cancelled") == (ended["state"], ended["error"]["code"])


def test_a_client_that_waits_for_a_cancelled_load_is_told(http: httpx.Client, child: Daemon, slow: str) -> None:
    """Whoever waits for a load that someone else releases gets 409 `cancelled`."""
    answers: list[httpx.Response] = []

    def waits() -> None:
        body = {"model": slow, "devices": ["slow"], "load_mode": "none"}
        answers.append(httpx.post(f"{child.url}/v1/handles", json=body, headers={"Prefer": "wait=20"}, timeout=30))

    thread = threading.Thread(target=waits)
    thread.start()
    while not (loading := [one for one in listed(http) if one["state"] == "transferring"]):
        time.sleep(0.01)
    http.delete(f"/v1/handles/{loading[0]['id']}")
    thread.join()
    assert loading[0]["id"] == require_problem(answers[0], 409, "cancelled")["handle_id"]


def test_progress_never_falls_and_is_whole_only_at_the_end(http: httpx.Client, root: Path) -> None:
    """Progress is between 0 and 1, monotonic, and 1 only when every byte is in place."""
    shape = {"ff": 1 << 17}
    build(root / "steady.gguf", llama_keys(1, **shape), llama_tensors(1, **shape), seed=None)
    handle_id = post(http, {"model": "steady.gguf", "devices": ["slow"], "load_mode": "none"}).json()["id"]
    seen: list[tuple[float, str]] = []
    while not seen or seen[-1][1] not in ("ready", "failed"):
        handle = http.get(f"/v1/handles/{handle_id}").json()
        seen.append((handle["progress"], handle["state"]))
    assert [progress for progress, _ in seen] == sorted(progress for progress, _ in seen)
    assert {"ready"} >= {state for progress, state in seen if progress == 1.0} - {"verifying"}
    assert any(0 < progress < 1 for progress, _ in seen)


def test_an_unknown_handle_is_not_found(http: httpx.Client) -> None:
    """Every call about a handle that never was answers 404 `handle_not_found`."""
    for method, path in (("GET", "/v1/handles/x"), ("GET", "/v1/handles/x/plan"), ("DELETE", "/v1/handles/x")):
        require_problem(http.request(method, path), 404, "handle_not_found")


def test_an_idempotency_key_makes_one_load_of_two_requests(http: httpx.Client, model: str) -> None:
    """The same key with the same body is the same handle; with another body it is a conflict."""
    body = {"model": model, "devices": ["host0"]}
    first, second = (post(http, body, Idempotency_Key="once") for _ in range(2))
    assert first.json()["id"] == second.json()["id"]
    require_problem(post(http, {**body, "devices": ["host1"]}, Idempotency_Key="once"), 409, "idempotency_conflict")
    require_problem(post(http, body, Idempotency_Key=""), 400, "bad_request")
    require_problem(post(http, body, Idempotency_Key="x" * 256), 400, "bad_request")


def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated(http: httpx.Client, model: str) -> None:
    """507 with what each device would need and has; the plan says the same without refusing."""
    before = allocated(http)
    body = {"model": model, "devices": ["tiny"]}
    problem = require_problem(post(http, body, wait="10"), 507, "insufficient_memory")
    assert [("tiny", 304_384, 65_536)] == [
        (one["device"], one["needed_bytes"], one["free_bytes"]) for one in problem["devices"]
    ]
    assert before == allocated(http)
    plan = http.post("/v1/plans", json=body).json()
    assert (False, 304_384 - 65_536) == (plan["fits"], plan["shortfall_bytes"]["tiny"])


@pytest.mark.parametrize(("device", "stage"), [("broken", "transferring"), ("full", "allocating")])
def test_a_device_that_fails_is_named_and_leaves_nothing(
    http: httpx.Client, model: str, device: str, stage: str
) -> None:
    """A fault of a device ends the load with `device_failed`, the device, the stage, and every byte given back."""
    before = allocated(http)
    response = post(http, {"model": model, "devices": [device, "host0"], "load_mode": "none"}, wait="10")
    problem = require_problem(response, 500, "device_failed")
    assert (device, stage) == (problem["device"], problem["stage"])
    assert before == allocated(http)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"split_mode": "row"}, 422, "unsupported_split"),
        ({"split_mode": "tensor", "devices": SEVENTEEN}, 422, "unsupported_split"),
        ({"devices": []}, 400, "bad_request"),
        ({"devices": ["nowhere"]}, 400, "bad_request"),
        ({"devices": ["host0", "host0"]}, 400, "bad_request"),
        ({"devices": ["nomap"], "load_mode": "mmap"}, 422, "unsupported_load_mode"),
        ({"devices": [{"name": "cuda0", "kind": "cuda", "memory_bytes": 1 << 30}]}, 422, "device_not_loadable"),
        ({"context": {"n_ctx": -1}}, 400, "bad_request"),
        ({"allocator": "balanced"}, 400, "bad_request"),
        ({"model": "http://127.0.0.1/x.gguf"}, 400, "bad_request"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_refused_with_its_code(
    http: httpx.Client, model: str, change: dict[str, Any], status: int, code: str
) -> None:
    """A request that no load can fulfil is refused with the code that says why."""
    require_problem(post(http, {"model": model, **change}, wait="10"), status, code)


def test_a_declared_simulated_device_exists_for_one_load(http: httpx.Client, model: str) -> None:
    """Devices can be declared for rehearsal: loaded on, accounted for, and gone with the handle."""
    body = {"model": model, "devices": [{"name": "mine", "kind": "simulated", "memory_bytes": MIB}]}
    handle = post(http, body, wait="10").json()
    assert 304_384 == handle["allocated_bytes"]["mine"]
    assert "mine" not in allocated(http)
    assert handle["allocated_bytes"]["mine"] <= http.delete(f"/v1/handles/{handle['id']}").json()["released_bytes"]


def test_handles_are_listed_also_when_they_ended(http: httpx.Client, model: str) -> None:
    """The list has every handle in the order they were made, the released ones too."""
    ids = [post(http, {"model": model, "devices": ["host0"]}, wait="10").json()["id"] for _ in range(2)]
    http.delete(f"/v1/handles/{ids[0]}")
    states = {one["id"]: one["state"] for one in listed(http)}
    assert ids == [one for one in states if one in ids]
    assert ["released", "ready"] == [states[one] for one in ids]


def test_handles_come_in_pages(http: httpx.Client, model: str) -> None:
    """Pages follow one another to the last handle; each says how many there are; a hundred are a page unasked."""
    for _ in range(3):
        post(http, {"model": model, "devices": ["host0"]}, wait="10")
    everything = [one["id"] for one in listed(http)]
    seen: list[str] = []
    place = "/v1/handles?limit=2"
    while place:
        page = http.get(place).json()
        assert len(everything) == page["count"]
        assert page["offset"] == len(seen)
        seen += [one["id"] for one in page["handles"]]
        place = page["next"]
    assert everything == seen
    unasked = http.get("/v1/handles").json()
    assert everything[:100] == [one["id"] for one in unasked["handles"]]
    for query in ("limit=0", "limit=10001", "offset=-1", "state=ready", "limit=1&limit=2"):
        require_problem(http.get(f"/v1/handles?{query}"), 400, "bad_request")


def test_a_short_history_forgets_nobody_who_waits(root: Path, model: str) -> None:
    """With a history of one, forty clients that wait for loads that fail get each its own failure."""
    body = {"model": model, "devices": [{"name": "x", "memory_bytes": 10}]}
    with running_daemon("--model-roots", str(root), "--history-limit", "1") as daemon, ThreadPoolExecutor(40) as pool:
        asked = [
            pool.submit(httpx.post, f"{daemon.url}/v1/handles", json=body, headers={"Prefer": "wait=20"}, timeout=30)
            for _ in range(40)
        ]
        problems = [require_problem(one.result(), 507, "insufficient_memory") for one in asked]
    assert 40 == len({problem["handle_id"] for problem in problems})


async def test_a_full_queue_turns_loads_away(small: Small, slow: str) -> None:
    """With as many loads waiting as may, the next one is told to come back: 503 `queue_full` with Retry-After."""
    body = {"model": slow, "devices": ["slow"], "load_mode": "none"}
    settings = {"simulated_devices": "slow:4GiB,bandwidth=16MiB", "load_workers": "1", "queue_limit": "1"}
    async with small(**settings) as (client, _daemon):
        running = (await client.post("/v1/handles", json=body, headers={"Prefer": "wait=0.5"})).json()
        assert "transferring" == running["state"]
        queued = (await client.post("/v1/handles", json=body)).json()
        turned_away = await client.post("/v1/handles", json=body)
        require_problem(turned_away, 503, "queue_full")
        assert "1" == turned_away.headers["retry-after"]
        require_problem(await client.get(f"/v1/handles/{queued['id']}/plan"), 503, "still_loading")
        assert "cancelled" == (await client.delete(f"/v1/handles/{queued['id']}")).json()["state"]
        require_problem(await client.get(f"/v1/handles/{queued['id']}/plan"), 404, "not_found")


async def test_a_daemon_that_shuts_down_takes_no_more_work(small: Small, model: str) -> None:
    """After the end was announced loads are refused, readiness fails, and what was loaded is given back."""
    async with small() as (client, daemon):
        loaded = await client.post("/v1/handles", json={"model": model}, headers={"Prefer": "wait=10"})
        assert 200 == loaded.status_code
        assert daemon.service.close(10)
        require_problem(await client.post("/v1/handles", json={"model": model}), 503, "shutting_down")
        require_problem(await client.get("/readyz"), 503, "not_ready")
        assert "released" == (await client.get(f"/v1/handles/{loaded.json()['id']}")).json()["state"]
        assert 0 == sum(device["allocated_bytes"] for device in (await client.get("/v1/devices")).json()["devices"])


async def test_a_file_that_may_not_be_read_is_forbidden(
    small: Small, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file system does not let the daemon read is 403 `permission_denied`."""
    really_open = os.open

    def guarded(path: Any, *arguments: Any, **named: Any) -> int:
        if str(path).endswith(model):
            raise PermissionError(errno.EACCES, "Permission denied", path)  # root would be let in
        return really_open(path, *arguments, **named)

    async with small() as (client, _daemon):
        monkeypatch.setattr(os, "open", guarded)
        require_problem(await client.post("/v1/handles", json={"model": model}), 403, "permission_denied")
        require_problem(await client.post("/v1/plans", json={"model": model}), 403, "permission_denied")


def test_json_of_a_handle_is_one_line_for_each_stage(http: httpx.Client, model: str) -> None:
    """A handle can be read as text: its stages stand on lines of their own."""
    text = post(http, {"model": model, "devices": ["host0"]}, wait="10").text
    assert len(STAGES) == sum(line.strip().startswith('{"stage"') for line in text.splitlines())
    assert json.loads(text)
