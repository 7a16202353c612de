"""`/v1/handles/{id}/tensors`: where the tensors of a loaded model lie, and their bytes, read from the devices."""

import itertools
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import FastAPI, Query, Request, Response

from app.api.answers import problem_answer
from app.api.budget import Share
from app.api.context import ApiContext
from app.api.paging import Limit, Offset, page_facts
from app.api.ranges import is_known, require_meant, wanted_bytes
from app.api.streaming import PieceResponse, json_answer
from app.api.views import location_of
from app.api.workers import Pool
from app.errors import RequestError
from app.residency.reading import Content
from app.units import MIB

_DATA: Final = "/v1/handles/{handle_id}/tensors/{name}/data"
_BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "All bytes", "content": {"application/octet-stream": {}}},
    206: {"description": "The bytes of the range", "content": {"application/octet-stream": {}}},
    304: {"description": "The client has them already"},
}

_HELD_BYTES: Final = 3 * MIB
"""What a download holds while its client does not read: a piece, what is made of it, and what waits to be sent."""

Layer = Annotated[int | None, Query(ge=0, le=2**31)]
Copy = Annotated[int | None, Query(ge=0, le=2**31)]


def add_tensor_routes(app: FastAPI, context: ApiContext) -> None:
    """Serve the routes of a loaded model's tensors."""
    service, workers = context.service, context.workers

    @app.get("/v1/handles/{handle_id}/tensors", summary="The tensors of a loaded model, and where they lie")
    async def tensors(
        request: Request,
        handle_id: str,
        role: str | None = None,
        layer: Layer = None,
        device: str | None = None,
        offset: Offset = 0,
        limit: Limit = 1000,
    ) -> Response:
        def render() -> dict[str, Any]:
            found, count = service.reader(handle_id).tensors(role, layer, device, offset, limit)
            return {**page_facts(request, offset, limit, count), "tensors": found}

        return await json_answer(context, Pool.VIEW, render)

    @app.get("/v1/handles/{handle_id}/tensors/{name}", summary="One tensor: its plan and its places")
    async def tensor(request: Request, handle_id: str, name: str) -> Response:
        def render() -> dict[str, Any]:
            facts = service.reader(handle_id).tensor(name)
            return {**facts, "data": f"{location_of(handle_id)}/tensors/{quote(name, safe='')}/data"}

        return await json_answer(context, Pool.VIEW, render)

    @app.get(_DATA, summary="A tensor's bytes, as the file has them, or as float32", responses=_BYTES)
    @app.head(_DATA, include_in_schema=False)
    async def data(
        request: Request,
        handle_id: str,
        name: str,
        device: str | None = None,
        copy: Copy = None,
        dtype: Literal["f32"] | None = None,
    ) -> Response:
        def find() -> Content:
            reader = service.reader(handle_id)
            return reader.content(name, device=device, copy=copy, as_f32=dtype is not None)

        content = await workers.run(Pool.VIEW, find)
        etag = f'"{content.tag}"'
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
        require_meant(request, etag)
        if is_known(request, etag):
            return Response(status_code=304, headers=headers)
        try:
            wanted = wanted_bytes(request, content.nbytes, etag)
        except RequestError as refusal:
            return problem_answer(refusal, headers={"Content-Range": f"bytes */{content.nbytes}"})
        headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(wanted.stop - wanted.start)}
        if wanted.partial:
            headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{content.nbytes}"
        status = 206 if wanted.partial else 200
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers)
        pieces, share = content.pieces(wanted.start, wanted.stop), Share(context.answers)
        try:
            share.take(min(wanted.stop - wanted.start, _HELD_BYTES if dtype is None else 2 * _HELD_BYTES))
            first = await workers.run(Pool.READ, lambda: next(pieces, b""))  # here a failure still has an answer
        except BaseException:
            share.give_back()
            raise
        return PieceResponse(workers, Pool.READ, itertools.chain((first,), pieces), status, headers, share.give_back)
