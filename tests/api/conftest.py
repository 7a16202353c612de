"""A real daemon on loopback for all tests of the edge, and small ones inside this process for its details."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.loading.lifecycle import TERMINAL
from app.main import Daemon, build
from app.settings import read_settings
from tests.daemon import Daemon as Child
from tests.daemon import running_daemon

MIB = 1 << 20
ENDED = {state.value for state in TERMINAL}
FLAGS = {
    "host-capacity-bytes": "4GiB",
    "host-devices": "host0=2GiB,host1=2GiB",
    "simulated-devices": "sim0:1GiB;sim1:1GiB;tiny:64KiB;slow:4GiB,bandwidth=64MiB;"
    "broken:1GiB,fail_write=1;full:1GiB,fail_allocation=1;nomap:1GiB,no-mmap_support",
    "log-level": "warning",
}


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one folder that models may be loaded from."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def child(root: Path) -> Iterator[Child]:
    """The daemon that the tests of a session share."""
    flags = [word for name, value in FLAGS.items() for word in (f"--{name}", value)]
    with running_daemon(*flags, "--model-roots", str(root)) as running:
        yield running


@pytest.fixture
def http(child: Child) -> Iterator[httpx.Client]:
    """A client of the shared daemon; whatever a test left loaded or loading is released behind it."""
    with httpx.Client(base_url=child.url, timeout=30) as client:
        yield client
        for handle in client.get("/v1/handles?limit=10000").json()["handles"]:
            if handle["state"] not in ENDED:
                client.delete(f"/v1/handles/{handle['id']}")


Small = Callable[..., AbstractAsyncContextManager[tuple[httpx.AsyncClient, Daemon]]]


@pytest.fixture
def small(root: Path) -> Small:
    """A daemon in this process, with the settings given as keywords, and a client that calls it directly."""

    @asynccontextmanager
    async def make(**settings: str) -> AsyncIterator[tuple[httpx.AsyncClient, Daemon]]:
        daemon = build(read_settings({}, {"model_roots": str(root), "host_capacity_bytes": "1GiB", **settings}))
        transport = httpx.ASGITransport(daemon.app, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://ggufd") as client:
                yield client, daemon
        finally:
            daemon.service.close(10)

    return make
