"""`/v1/files`: which models lie under the roots, what each of them is, and what is wrong with it, if anything is."""

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from app.api.context import ApiContext
from app.api.paging import Limit, Offset, page_facts
from app.api.streaming import json_answer
from app.api.views import file_json, location_of_file
from app.api.workers import Pool
from app.errors import RequestError
from app.residency.files import warmth_json

FileLimit = Annotated[int, Query(ge=1, le=1000)]


def add_file_routes(app: FastAPI, context: ApiContext) -> None:
    """Serve the routes of files. Files are read in threads, never in the event loop."""
    service = context.service

    @app.get("/v1/files", summary="The GGUF files under the roots: facts, whether they can be loaded, warmth")
    async def files(request: Request, offset: Offset = 0, limit: FileLimit = 100) -> Response:
        def render() -> dict[str, Any]:
            page = service.files(offset, limit)
            facts: dict[str, Any] = page_facts(request, offset, limit, page.count, page.stop)
            facts |= {"truncated": bool(page.limits_met), "limits_met": [*page.limits_met]}
            facts["unreadable_folders"] = page.unreadable
            entries = [
                {"path": entry.path, **entry.facts, "details": location_of_file(entry.path) if entry.nameable else None}
                for entry in page.entries
            ]
            return {**facts, "files": entries}

        return await json_answer(context, Pool.FILES, render)

    @app.get("/v1/files/{path:name}", summary="One GGUF file: metadata, tensors, what is missing, wrong, extra, unused")
    async def file(
        request: Request,
        path: str,
        name: str = "",
        type: str | None = None,  # noqa: A002 - the parameter's name on the wire
        offset: Offset = 0,
        limit: Limit = 1000,
    ) -> Response:
        def render() -> dict[str, Any]:
            description, heat = service.file(path)
            if type is not None and type not in (known := {tensor.type.name for tensor in description.tensors()}):
                raise RequestError(
                    f"type: no tensor of the file is {type[:40]}; there are {', '.join(sorted(known)) or 'none'}",
                    field="type",
                )
            found = description.tensors(name, type)
            page = {"page_cache": warmth_json(heat), **page_facts(request, offset, limit, len(found))}
            return file_json(description, path, page, found[offset : offset + limit])

        return await json_answer(context, Pool.FILES, render)
