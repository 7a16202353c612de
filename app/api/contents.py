"""`/v1/handles/{id}/embeddings`, `…/metadata`, `…/vocabulary`: what a loaded model knows of tokens and of itself."""

import itertools
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI, Request, Response

from app.api.budget import Share
from app.api.context import ApiContext
from app.api.incoming import json_body
from app.api.paging import Limit, Offset, page_facts
from app.api.rows import JSON, NPY, json_pieces, npy_pieces, parse_embeddings
from app.api.streaming import PieceResponse, json_answer
from app.api.views import location_of
from app.api.workers import Pool
from app.residency.keys import metadata_json, metadata_value, vocabulary_json

_ROWS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A row of float32 per token", "content": {JSON: {}, NPY: {}}}
}
_TOKENS: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["tokens"],
                    "additionalProperties": False,
                    "properties": {
                        "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                        "format": {"type": "string", "enum": ["json", "npy"]},
                        "copy": {"type": "integer", "minimum": 0},
                    },
                }
            }
        },
    }
}


def add_content_routes(app: FastAPI, context: ApiContext) -> None:
    """Serve the routes of embeddings, metadata and vocabulary."""
    service, workers = context.service, context.workers

    @app.post(
        "/v1/handles/{handle_id}/embeddings",
        openapi_extra=_TOKENS,
        responses=_ROWS,
        summary="Rows of the token embedding, as float32",
    )
    async def embeddings(request: Request, handle_id: str) -> Response:
        body = await json_body(request, context.limits.max_body_bytes)
        arrived = time.perf_counter()
        accept = ",".join(request.headers.getlist("accept"))

        share = Share(context.answers)

        def look_up() -> tuple[Iterator[bytes], dict[str, str]]:
            tokens, copy, media_type = parse_embeddings(body, accept)
            found = service.reader(handle_id).embeddings(tokens, copy, share.take)
            pieces = npy_pieces(found.values) if media_type == NPY else json_pieces(found.values, tokens)
            first = next(pieces)
            total = time.perf_counter() - arrived
            spent = {"read": found.read_seconds, "dequantise": found.dequantise_seconds, "total": total}
            timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in spent.items())
            headers = {"Content-Type": media_type, "Cache-Control": "no-store", "Server-Timing": timing}
            if media_type == NPY:
                headers["Content-Length"] = str(len(first) + found.values.nbytes)
            return itertools.chain((first,), pieces), headers

        try:
            pieces, headers = await workers.run(Pool.ROWS, look_up)
        except BaseException:
            share.give_back()
            raise
        return PieceResponse(workers, Pool.ROWS, pieces, 200, headers, share.give_back)

    @app.get("/v1/handles/{handle_id}/metadata", summary="The metadata of a loaded model; long values are cut")
    async def metadata(request: Request, handle_id: str) -> Response:
        def render() -> dict[str, Any]:
            entries = metadata_json(service.reader(handle_id).model)
            for entry in entries:
                if not entry["complete"]:
                    entry["whole"] = f"{location_of(handle_id)}/metadata/{quote(entry['key'], safe='')}"
            return {"metadata": entries}

        return await json_answer(context, Pool.VIEW, render)

    @app.get("/v1/handles/{handle_id}/metadata/{key:name}", summary="One metadata key, whole, or a page of an array")
    async def value(request: Request, handle_id: str, key: str, offset: Offset = 0, limit: Limit = 1000) -> Response:
        def render() -> dict[str, Any]:
            reader = service.reader(handle_id)
            with reader.named_as_asked():
                found = metadata_value(reader.model, key, offset, limit)
            if found["type"] == "array":
                found |= page_facts(request, offset, limit, found["count"], offset + len(found["value"]))
            return found

        return await json_answer(context, Pool.READ, render)

    @app.get("/v1/handles/{handle_id}/vocabulary", summary="The tokens of a loaded model, with scores and types")
    async def vocabulary(request: Request, handle_id: str, offset: Offset = 0, limit: Limit = 1000) -> Response:
        def render() -> dict[str, Any]:
            reader = service.reader(handle_id)
            with reader.named_as_asked():
                found = vocabulary_json(reader.model, offset, limit)
            stop = offset + len(found["tokens"])
            return {**found, **page_facts(request, offset, limit, found["count"], stop)}

        return await json_answer(context, Pool.READ, render)
