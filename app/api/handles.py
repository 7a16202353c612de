"""`/v1/handles`: ask for a model, watch it load, look at its plan, give it back."""

import asyncio
import contextlib
from typing import Any, Final

from fastapi import FastAPI, Request, Response

from app.api import bodies
from app.api.answers import answer, problem_answer
from app.api.context import PLAN_BODY, ApiContext
from app.api.incoming import idempotency_key, json_body, wait_seconds
from app.api.paging import Limit, Offset, page_facts
from app.api.streaming import json_answer
from app.api.views import handle_json, location_of
from app.api.workers import Pool
from app.errors import NotFoundError
from app.loading.lifecycle import UNDER_WAY
from app.service import HandleView

_MOMENT_SECONDS: Final = 1.0


class Waiting:
    """Waits for the end of a load, on the loop it was made on; meanwhile no thread is taken."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[HandleView] = self._loop.create_future()

    def tell(self, view: HandleView) -> None:
        """The load has ended; called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop may be closed by the time a forgotten load ends
            self._loop.call_soon_threadsafe(self._tell, view)

    async def ended(self, request: Request, seconds: float) -> HandleView | None:
        """The handle as its load left it; None if that is not known `seconds` later, or when the client has gone.

        The body of `request` has been read.
        """

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        watching = asyncio.create_task(watch())
        try:
            await asyncio.wait((self._ended, watching), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
        return self._ended.result() if self._ended.done() else None

    def _tell(self, view: HandleView) -> None:
        if not self._ended.done():
            self._ended.set_result(view)


def add_handle_routes(app: FastAPI, context: ApiContext) -> None:
    """Serve the routes of handles."""
    service, workers = context.service, context.workers

    @app.post("/v1/handles", status_code=202, openapi_extra=PLAN_BODY, summary="Load a model")
    async def create(request: Request) -> Response:
        body = await json_body(request, context.limits.max_body_bytes)
        key = idempotency_key(request)
        seconds = wait_seconds(request, context.limits.max_wait_seconds)
        waiting = None if seconds is None else Waiting()
        tell = None if waiting is None else waiting.tell
        view = await workers.run(
            Pool.SUBMIT, lambda: service.submit(bodies.parse_plan(body), idempotency_key=key, on_end=tell)
        )
        headers = {"Location": location_of(view.id)}
        if waiting is None or seconds is None:
            return answer(handle_json(view), 202, headers=headers)
        headers["Preference-Applied"] = f"wait={seconds:g}"
        try:
            left = await waiting.ended(request, seconds)
        finally:
            service.forget(view.id, waiting.tell)
        if left is None:
            try:
                left = await workers.run(Pool.VIEW, lambda: service.handle(view.id))
            except NotFoundError:  # it has ended this moment and is forgotten; those who wait are told next
                left = await waiting.ended(request, _MOMENT_SECONDS)
        view = left or view
        if view.failure is not None:
            return problem_answer(
                view.failure.as_error(),
                instance=location_of(view.id),
                headers=headers,
                facts={"handle_id": view.id},
            )
        return answer(handle_json(view), 202 if view.state in UNDER_WAY else 200, headers=headers)

    @app.get("/v1/handles", summary="Handles, also those that ended a while ago, in pages")
    async def listing(request: Request, offset: Offset = 0, limit: Limit = 100) -> Response:
        def render() -> dict[str, Any]:
            views, count = service.handles(offset, limit)
            return {**page_facts(request, offset, limit, count), "handles": [handle_json(it) for it in views]}

        return await json_answer(context, Pool.VIEW, render)

    @app.get("/v1/handles/{handle_id}", summary="One handle: state, stages, progress, load mode, bytes")
    async def one(handle_id: str) -> Response:
        return await json_answer(context, Pool.VIEW, lambda: handle_json(service.handle(handle_id)))

    @app.get("/v1/handles/{handle_id}/plan", summary="The split plan of a handle")
    async def plan(handle_id: str) -> Response:
        return await json_answer(context, Pool.PLAN, lambda: service.handle_plan(handle_id))

    @app.delete("/v1/handles/{handle_id}", summary="Give the model back; cancels a load that is under way")
    async def release(handle_id: str) -> Response:
        released = await workers.run(Pool.RELEASE, lambda: service.release(handle_id))
        return answer(released.as_json())
