"""`/metrics` as scrapers ask for it."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import Small
from tests.builders import t0

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def test_openmetrics_brings_the_handle_of_a_load(http: httpx.Client, root: Path) -> None:
    """Asked for OpenMetrics, as Prometheus does, the buckets of loads carry the handle's id as an exemplar."""
    t0(root / "exemplar.gguf")
    body = {"model": "exemplar.gguf", "devices": ["host"]}
    handle = http.post("/v1/handles", json=body, headers={"Prefer": "wait=20"}).json()
    answer = http.get("/metrics", headers={"Accept": OPENMETRICS})

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    lines = answer.text.splitlines()
    assert any(
        line.startswith("ggufd_load_duration_seconds_bucket") and f'# {{handle_id="{handle["id"]}"}}' in line
        for line in lines
    )


def test_the_plain_format_is_the_default(http: httpx.Client) -> None:
    """Without a wish the answer is Prometheus' text format, which knows no exemplars."""
    answer = http.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain")
    assert 'handle_id="' not in answer.text


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=a",
        "text/plain;version=1.a",
        "application/openmetrics-text; version=",
        "text/plain; version=9999999999999999999.1.1.1",
        ";;,=",
    ],
)
def test_a_wish_that_makes_no_sense_is_none(http: httpx.Client, accept: str) -> None:
    """Whatever a scraper says that it accepts, it gets metrics."""
    answer = http.get("/metrics", headers={"Accept": accept})
    assert (200, True) == (answer.status_code, "ggufd_handles" in answer.text)


def test_series_of_models_are_a_setting(small: Small, root: Path) -> None:
    """`model_series_limit` gives resident models series of their own, which a release ends."""
    t0(root / "named.gguf")

    async def talk() -> tuple[str, str]:
        async with small(model_series_limit="5") as (client, _):
            handle = await client.post("/v1/handles", json={"model": "named.gguf"}, headers={"Prefer": "wait=20"})
            loaded = (await client.get("/metrics")).text
            await client.delete(handle.headers["Location"])
            return loaded, (await client.get("/metrics")).text

    loaded, released = asyncio.run(talk())
    assert 'ggufd_model_resident{model="named.gguf"} 1.0' in loaded
    assert "named.gguf" not in released
