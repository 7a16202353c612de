"""Plans, devices and the catalog over HTTP."""

from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.api.test_app import require_problem
from tests.builders import t0, tp

GIB = 1 << 30
MIB = 1 << 20


def fleet(count: int, **changes: Any) -> list[dict[str, Any]]:
    """Declared devices d0… of equal memory."""
    return [{"name": f"d{index}", "kind": "simulated", "memory_bytes": GIB, **changes} for index in range(count)]


def plan(http: httpx.Client, model: str, **body: Any) -> dict[str, Any]:
    """The plan that a request answers."""
    response = http.post("/v1/plans", json={"model": model, **body})
    assert 200 == response.status_code, response.text
    return cast(dict[str, Any], response.json())


def places(answer: dict[str, Any], layers: int) -> list[str]:
    """The device of each layer, then of the output."""
    by_name = {tensor["name"]: tensor["device"] for tensor in answer["tensors"]}
    return [by_name[f"blk.{layer}.attn_q.weight"] for layer in range(layers)] + [by_name["output.weight"]]


@pytest.fixture(scope="session")
def models(root: Path) -> dict[int, str]:
    """T0(L) by L."""
    return {layers: t0(root / f"t0-{layers}.gguf", layers).name for layers in (4, 6, 12)}


def test_a_plan_has_every_part_that_is_promised(http: httpx.Client, models: dict[int, str]) -> None:
    """The answer has its members, an entry has its own, and every tensor says why it is where it is."""
    answer = plan(http, models[4], split_mode="tensor", devices=fleet(2))
    assert {
        "plan_id", "fits", "shortfall_bytes", "model", "load_mode", "devices", "tensors", "caches", "warnings", "audit"
    } <= answer.keys()  # fmt: skip
    entry = answer["tensors"][0]
    assert {
        "name", "type", "shape", "bytes", "role", "layer", "device", "axis", "segments", "granularity", "rotation",
        "bytes_per_device", "why",
    } <= entry.keys()  # fmt: skip
    assert all(tensor["why"]["policy"] for tensor in answer["tensors"])
    assert {"name", "weights_bytes", "cache_bytes", "total_bytes", "free_bytes"} <= answer["devices"][0].keys()
    assert {"requested": "auto", "resolved": answer["load_mode"]["resolved"]} == {
        key: answer["load_mode"][key] for key in ("requested", "resolved")
    }


def test_equal_requests_have_equal_plans(http: httpx.Client, models: dict[int, str]) -> None:
    """The same wish gives the same plan under the same id; another wish another id."""
    first, second, third = (
        plan(http, models[4], devices=fleet(2), tensor_split=split) for split in ([1, 1], [1, 1], [3, 1])
    )
    assert first == second
    assert first["plan_id"] != third["plan_id"]


@pytest.mark.parametrize(
    ("layers", "ratios", "expected"),
    [
        (4, [3, 1], "00001"),
        (4, [1, 1], "00011"),
        (4, [0, 1], "11111"),
        (4, [1, 0], "00000"),
        (6, [1, 0, 1], "0000222"),
        (4, [1, 1, 0], "00011"),
        (6, [2, 1], "0000011"),
    ],
)
def test_layers_follow_the_ratios(
    http: httpx.Client, models: dict[int, str], layers: int, ratios: list[int], expected: str
) -> None:
    """In layer mode the layers and the output go to devices by their shares; zero skips a device."""
    answer = plan(http, models[layers], devices=fleet(len(ratios)), tensor_split=ratios)
    assert expected == "".join(name[1:] for name in places(answer, layers))


def test_a_layer_plan_is_exact_to_the_byte(http: httpx.Client, models: dict[int, str]) -> None:
    """T0(4) on two even devices: 443,904 and 156,416 bytes, 8,192 on the host."""
    answer = plan(http, models[4], devices=fleet(2), tensor_split=[1, 1])
    assert {"d0": 443_904, "d1": 156_416, "host": 8_192} == {
        one["name"]: one["total_bytes"] for one in answer["devices"]
    }


def test_few_ratios_are_filled_with_zeros_and_zeros_mean_none(http: httpx.Client, models: dict[int, str]) -> None:
    """A missing share is zero, all zeros are no shares at all, and zeros too many do no harm."""
    two = plan(http, models[4], devices=fleet(3), tensor_split=[1, 1])
    assert "00011" == "".join(name[1:] for name in places(two, 4))
    zeros = plan(http, models[4], devices=fleet(2), tensor_split=[0, 0])
    assert plan(http, models[4], devices=fleet(2))["tensors"] == zeros["tensors"]
    assert places(two, 4) == places(plan(http, models[4], devices=fleet(3), tensor_split=[1, 1, 0, 0, 0]), 4)


def test_a_device_can_be_skipped_in_tensor_mode(http: httpx.Client, root: Path) -> None:
    """With [1,0,1] the middle device gets no slice, only what every device needs."""
    name = tp(root / "tp.gguf", 4, 512, 2).name
    answer = plan(http, name, split_mode="tensor", devices=fleet(3), tensor_split=[1, 0, 1])
    extents = {tensor["name"]: [s["extents"] for s in tensor["segments"]] for tensor in answer["tensors"]}
    assert [[256, 0, 256]] == extents["blk.0.attn_q.weight"] == extents["blk.1.attn_q.weight"]
    assert [[128, 0, 128]] == extents["blk.0.attn_k.weight"]
    assert 0 < {one["name"]: one["total_bytes"] for one in answer["devices"]}["d1"] < 10_000


@pytest.mark.parametrize(
    "ratios", ["[1,-1]", "[-1,2]", "[NaN,1]", "[1e999,1]", "[3e38,3e38]", "[1,1,1]", '["1",1]', "[true,1]"]
)
def test_ratios_that_mean_nothing_are_refused_before_the_file_is_opened(http: httpx.Client, ratios: str) -> None:
    """Negative, endless, overflowing and superfluous shares are malformed, whether or not the model exists."""
    body = f'{{"model": "no-such.gguf", "devices": ["host0", "host1"], "tensor_split": {ratios}}}'
    for path in ("/v1/plans", "/v1/handles"):
        response = http.post(path, content=body, headers={"Content-Type": "application/json"})
        require_problem(response, 400, "bad_request")


def test_layers_follow_what_is_free(http: httpx.Client, models: dict[int, str]) -> None:
    """Without shares the free memory decides: a device without any gets no layer."""
    devices = fleet(3)
    for device, free in zip(devices, (0, 10 * MIB, 30 * MIB), strict=True):
        device["free_bytes"] = free
    assert "1122222" == "".join(name[1:] for name in places(plan(http, models[6], devices=devices), 6))


def test_nothing_free_anywhere_is_an_even_plan_that_does_not_fit(http: httpx.Client, models: dict[int, str]) -> None:
    """All devices full: the plan is even, says that it does not fit and warns; the load is refused with 507."""
    devices = fleet(2, free_bytes=0)
    answer = plan(http, models[4], devices=devices)
    assert (False, "00011") == (answer["fits"], "".join(name[1:] for name in places(answer, 4)))
    assert answer["warnings"]
    response = http.post("/v1/handles", json={"model": models[4], "devices": devices}, headers={"Prefer": "wait=10"})
    problem = require_problem(response, 507, "insufficient_memory")
    assert {"d0": (443_904, 0), "d1": (156_416, 0)} == {
        one["device"]: (one["needed_bytes"], one["free_bytes"]) for one in problem["devices"]
    }


@pytest.mark.parametrize(
    ("count", "ratios", "expected"),
    [
        (-5, [1, 1], "00011"),
        (-1, [1, 1], "00011"),
        (99, [1, 1], "00011"),
        (5, [1, 1], "00011"),
        (0, [1, 1], "-----"),
        (1, [1, 1], "----0"),
        (2, [1, 1], "---01"),
        (4, [1, 1], "-0011"),
        (3, [3, 1], "--000"),
    ],
)
def test_offloaded_layers_are_counted_from_the_output(
    http: httpx.Client, models: dict[int, str], count: int, ratios: list[int], expected: str
) -> None:
    """N takes the last N of layers and output; below zero and above all mean all; the rest stays on the host."""
    answer = plan(http, models[4], devices=fleet(2), tensor_split=ratios, n_gpu_layers=count)
    assert expected == "".join("-" if name == "host" else name[1:] for name in places(answer, 4))


@pytest.mark.parametrize("count", ['"3"', "3.0", "1099511627776", "true", "null", "1e3"])
def test_a_number_of_layers_is_a_whole_number(http: httpx.Client, models: dict[int, str], count: str) -> None:
    """Strings, fractions and numbers beyond 32 bits are no number of layers."""
    body = f'{{"model": "{models[4]}", "n_gpu_layers": {count}}}'
    response = http.post("/v1/plans", content=body, headers={"Content-Type": "application/json"})
    assert "n_gpu_layers" == require_problem(response, 400, "bad_request")["field"]


def moved(answer: dict[str, Any]) -> set[str]:
    """The tensors of blocks on the host."""
    return {t["name"] for t in answer["tensors"] if t["device"] == "host" and t["name"].startswith("blk.")}


def test_patterns_are_searched_anywhere_and_the_first_wins(http: httpx.Client, models: dict[int, str]) -> None:
    """`blk.1` means layers 1, 10 and 11; `blk\\.1\\.` only layer 1; the first pattern that matches decides."""
    wide = plan(http, models[12], devices=fleet(2), overrides=[{"pattern": "blk.1", "device": "host"}])
    assert 27 == len(moved(wide))
    narrow = plan(http, models[12], devices=fleet(2), overrides=[{"pattern": r"blk\.1\.", "device": "host"}])
    assert (9, 147_968) == (
        len(moved(narrow)),
        sum(tensor["bytes"] for tensor in narrow["tensors"] if tensor["name"] in moved(narrow)),
    )
    rules = [{"pattern": "ffn", "device": "host"}, {"pattern": r"blk\.3\.", "device": "d1"}]
    both = {
        tensor["name"]: tensor["device"]
        for tensor in plan(http, models[12], devices=fleet(2), overrides=rules)["tensors"]
    }
    assert ("host", "d1") == (both["blk.3.ffn_up.weight"], both["blk.3.attn_q.weight"])


def test_a_pattern_that_matches_nothing_is_a_warning(http: httpx.Client, models: dict[int, str]) -> None:
    """A pattern without a match changes nothing and is mentioned."""
    answer = plan(http, models[4], devices=fleet(2), overrides=[{"pattern": "nothing", "device": "d0"}])
    assert any("nothing" in warning for warning in answer["warnings"])


def test_a_broken_pattern_says_where_and_an_unknown_device_which_there_are(http: httpx.Client) -> None:
    """Both are refused before the file is opened."""
    body = {"model": "no-such.gguf", "devices": fleet(2)}
    broken = http.post("/v1/plans", json={**body, "overrides": [{"pattern": "ffn(", "device": "d0"}]})
    assert ("overrides[0].pattern", 3) == tuple(
        require_problem(broken, 400, "bad_request")[key] for key in ("field", "position")
    )
    unknown = http.post("/v1/plans", json={**body, "overrides": [{"pattern": "ffn", "device": "gpu"}]})
    problem = require_problem(unknown, 400, "bad_request")
    assert ("overrides[0].device", ["d0", "d1", "host"]) == (problem["field"], problem["devices"])


def test_no_pattern_can_hang_the_daemon(http: httpx.Client, models: dict[int, str]) -> None:
    """A pattern that makes backtracking engines run for ever is answered at once."""
    overrides = [{"pattern": "(.*a){30}b", "device": "host"}]
    answer = http.post("/v1/plans", json={"model": models[12], "devices": fleet(2), "overrides": overrides}, timeout=2)
    assert 200 == answer.status_code


def test_devices_are_listed_with_memory_and_capabilities(http: httpx.Client) -> None:
    """Every device tells its kind, its memory and what it can do; the host is always there."""
    devices = {one["name"]: one for one in http.get("/v1/devices").json()["devices"]}
    assert ["host", "host0", "host1"] == list(devices)[:3]
    assert ("simulated", 64 * 1024, 64 * 1024) == tuple(
        devices["tiny"][key] for key in ("kind", "memory_bytes", "free_bytes")
    )
    assert {"async", "host_buffer", "buffer_from_host_ptr", "events", "mmap_support"} == devices["sim0"][
        "capabilities"
    ].keys()
    assert not devices["nomap"]["capabilities"]["mmap_support"]


def test_the_catalog_is_listed(http: httpx.Client) -> None:
    """Every architecture has a name and its capabilities; one that is refused says why."""
    listed = {one["name"]: one for one in http.get("/v1/architectures").json()["architectures"]}
    assert listed["llama"]["capabilities"]["tensor_split"]
    assert listed["clip"]["refused"]


def test_metrics_show_the_loads_and_the_memory(http: httpx.Client, models: dict[int, str]) -> None:
    """A scrape shows a finished load, what devices hold, and requests by route; nothing in it starts a load."""
    http.post("/v1/handles", json={"model": models[4], "devices": ["host0"]}, headers={"Prefer": "wait=10"})
    text = http.get("/metrics").text
    samples = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    assert samples['ggufd_loads_total{outcome="ready",reason="none"}'] >= 1
    assert samples['ggufd_device_memory_allocated_bytes{device="host0"}'] == 600_320
    assert samples['ggufd_http_request_duration_seconds_count{code="200",method="POST",route="/v1/handles"}'] >= 1
    assert not [name for name in samples if "_created" in name]
