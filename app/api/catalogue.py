"""`/v1/plans`, `/v1/devices`, `/v1/architectures`: what would happen, on what, and what is known."""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response

from app.api import bodies
from app.api.answers import encode, raw
from app.api.context import PLAN_BODY, ApiContext
from app.api.incoming import json_body
from app.api.workers import Pool
from app.architectures.descriptor import Architecture
from app.devices.facts import DeviceFacts


def device_json(facts: DeviceFacts) -> dict[str, Any]:
    """A device as the API shows it: sizes in bytes, capabilities by their names on the wire."""
    return {
        "name": facts.name,
        "kind": facts.kind,
        "description": facts.description,
        "memory_bytes": facts.memory_bytes,
        "free_bytes": facts.free_bytes,
        "allocated_bytes": facts.allocated_bytes,
        "alignment_bytes": facts.alignment_bytes,
        "max_allocation_bytes": facts.max_allocation_bytes,
        "capabilities": facts.capabilities.as_json(),
    }


def architecture_json(architecture: Architecture) -> dict[str, Any]:
    """An architecture as the API shows it: its capabilities by name, and why it is refused, if it is."""
    return {
        "name": architecture.name,
        "refused": architecture.refused,
        "capabilities": asdict(architecture.capabilities),
    }


def add_catalogue_routes(app: FastAPI, context: ApiContext) -> None:
    """Serve the routes that change nothing."""
    service, workers = context.service, context.workers

    @app.post("/v1/plans", openapi_extra=PLAN_BODY, summary="Plan a model without loading it")
    async def plans(request: Request) -> Response:
        body = await json_body(request, context.limits.max_body_bytes)
        return raw(await workers.run(Pool.PLAN, lambda: encode(service.plan(bodies.parse_plan(body)))))

    @app.get("/v1/devices", summary="The devices: memory and capabilities")
    async def devices() -> Response:
        def render() -> bytes:
            return encode({"devices": [device_json(facts) for facts in service.devices()]})

        return raw(await workers.run(Pool.VIEW, render))

    @app.get("/v1/architectures", summary="The catalog of architectures")
    async def architectures() -> Response:
        def render() -> bytes:
            return encode({"architectures": [architecture_json(one) for one in service.architectures()]})

        return raw(await workers.run(Pool.VIEW, render))
