"""`/healthz`, `/readyz`, `/metrics`: for those who watch over the daemon."""

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from app.api.answers import answer, problem_answer, raw
from app.api.context import ApiContext
from app.api.encoding import encode
from app.api.workers import Pool
from app.errors import BusyError

_ALIVE = encode({"status": "alive"})


def add_probe_routes(app: FastAPI, context: ApiContext, registry: CollectorRegistry) -> None:
    """Serve the routes of probes and scrapers."""

    @app.get("/healthz", summary="Whether the daemon is alive; never depends on a load")
    @app.head("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return raw(_ALIVE)  # nothing here may wait: no thread, no lock

    @app.get("/readyz", summary="Whether devices are known and the load queue moves")
    @app.head("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        ready, reason = await context.workers.run(Pool.PROBE, context.service.ready)
        if ready:
            return answer({"status": "ready"})
        return problem_answer(BusyError(f"not ready: {reason}", code="not_ready"))

    @app.get("/metrics", summary="Metrics for Prometheus")
    @app.head("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        try:
            encoder, media_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # it stumbles over versions that are no numbers
            encoder, media_type = choose_encoder("")
        body = await context.workers.run(Pool.PROBE, lambda: encoder(registry))
        return Response(body, headers={"Content-Type": media_type})
