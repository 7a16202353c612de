"""`/v1/plans`, `/v1/devices`, `/v1/architectures`: what would happen, on what, and what is known."""

from typing import Any

from fastapi import FastAPI, Request, Response

from app.api import bodies
from app.api.context import PLAN_BODY, ApiContext
from app.api.incoming import json_body
from app.api.streaming import json_answer
from app.api.views import catalog_json, device_json
from app.api.workers import Pool


def add_catalogue_routes(app: FastAPI, context: ApiContext) -> None:
    """Serve the routes that change nothing."""
    service = context.service

    @app.post("/v1/plans", openapi_extra=PLAN_BODY, summary="Plan a model without loading it")
    async def plans(request: Request) -> Response:
        body = await json_body(request, context.limits.max_body_bytes)
        return await json_answer(context, Pool.PLAN, lambda: service.plan(bodies.parse_plan(body)))

    @app.get("/v1/devices", summary="The devices: memory and capabilities")
    async def devices() -> Response:
        def render() -> dict[str, Any]:
            return {"devices": [device_json(facts) for facts in service.devices()]}

        return await json_answer(context, Pool.VIEW, render)

    @app.get("/v1/architectures", summary="The catalog of architectures")
    async def architectures() -> Response:
        return await json_answer(context, Pool.VIEW, lambda: catalog_json(service.architectures()))
