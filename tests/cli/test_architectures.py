import asyncio
import json
from typing import cast

import httpx
import pytest
from prometheus_client import CollectorRegistry

from app.api.app import create_app
from app.architectures.registry import load_catalog
from app.main import main
from app.service import LoaderService


@pytest.fixture(params=[80, 120])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A terminal of that width."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    return cast(int, request.param)


def test_the_catalog_is_a_table_that_fits_the_terminal(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Every architecture has its line, with what it is or why it is refused, and no line is wider than the screen."""
    assert 0 == main(["architectures"])
    lines = capsys.readouterr().out.splitlines()
    assert columns >= max(map(len, lines))
    told = {line.split()[0]: line for line in lines[1:-3] if not line.startswith("   ")}
    assert [architecture.name for architecture in load_catalog()] == [*told]
    assert ["qwen35", "imrope", "tensor"] == told["qwen35"].split()[:3]
    for name, words in (
        ("dream", "diffusion"),
        ("eagle3", "encoder and decoder, draft"),
        ("t5encoder", "encoder alone"),
        ("grok", "layer   no flash attention"),
        ("clip", "refused: a multimodal projector"),
    ):
        assert words in told[name]
    assert ["bert", "neox", "tensor"] == told["bert"].split()


def test_json_is_what_the_daemon_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the bytes of `GET /v1/architectures`."""
    assert 0 == main(["architectures", "--json"])
    printed = capsys.readouterr().out

    class Service:
        def architectures(self) -> object:
            return load_catalog()

    app = create_app(cast(LoaderService, Service()), CollectorRegistry(), observe=lambda *_: None)
    transport = httpx.ASGITransport(app)

    async def ask() -> str:
        async with httpx.AsyncClient(transport=transport, base_url="http://ggufd") as client:
            return (await client.get("/v1/architectures")).text

    assert asyncio.run(ask()) == printed
    names = [one["name"] for one in json.loads(printed)["architectures"]]
    assert [architecture.name for architecture in load_catalog()] == names
