"""The front door: composes the daemon from its settings, and starts the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command that needs no daemon shall not wait for its imports
    from app.api.app import Application
    from app.loading.run import World
    from app.service import LoaderService
    from app.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A composed daemon: the application to serve, and the service, to be closed when serving ends."""

    app: Application
    service: LoaderService


def build(settings: Settings) -> Daemon:
    """The daemon that `settings` describe; its worker threads run when this returns.

    Raises RequestError if two devices bear one name.
    """
    from prometheus_client import CollectorRegistry, disable_created_metrics

    from app.api.app import create_app
    from app.api.index import expected_answers
    from app.metrics import Metrics
    from app.service import LoaderService

    disable_created_metrics()  # type: ignore[no-untyped-call]  # a series beside each counter that nobody asked for
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    service = LoaderService(
        build_world(settings, settings.model_roots), limits=settings.service, observers=[metrics.observe]
    )
    metrics.watch(service.snapshot, settings.model_series_limit)
    app = create_app(service, registry, observe=metrics.observe_request, limits=settings.api)
    metrics.expect_requests(expected_answers(app))
    return Daemon(app=app, service=service)


def build_world(settings: Settings, roots: tuple[Path, ...] | None) -> World:
    """The devices, the catalog and the limits; `roots` None: any path may be read (for the command line).

    Raises RequestError if two devices bear one name.
    """
    from app.architectures.registry import load_catalog
    from app.devices.discovery import discover
    from app.loading.run import World

    return World(
        catalog=load_catalog(),
        backends=discover(settings.host_capacity_bytes, settings.host_devices, settings.simulated_devices),
        limits=settings.read,
        roots=roots,
        chunk_bytes=settings.chunk_bytes,
        transfer_threads=settings.transfer_threads,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command `ggufd`; answers the exit code: 0 done, 1 failed, 2 misused, 130 interrupted."""
    from app.cli.commands import run

    return run(sys.argv[1:] if argv is None else argv)
