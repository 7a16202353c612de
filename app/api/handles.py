"""`/v1/handles`: ask for a model, watch it load, look at its plan, give it back."""

import asyncio
import contextlib

from fastapi import FastAPI, Request, Response

from app.api import bodies
from app.api.answers import answer, problem_answer, raw
from app.api.context import PLAN_BODY, ApiContext
from app.api.encoding import encode
from app.api.incoming import idempotency_key, json_body, wait_seconds
from app.api.views import handle_json, location_of
from app.api.workers import Pool
from app.loading.lifecycle import UNDER_WAY


async def until_ended(context: ApiContext, request: Request, handle_id: str, seconds: float) -> None:
    """Return when the load of the handle has ended, `seconds` later, or when the client of `request` has gone.

    Meanwhile no thread is taken. The body of `request` has been read.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wake(*_told: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed by the time a forgotten load ends
            loop.call_soon_threadsafe(ended.set)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        ended.set()

    forget = await context.workers.run(Pool.VIEW, lambda: context.service.when_ended(handle_id, wake))
    watching = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        pass
    finally:
        watching.cancel()
        forget()


def add_handle_routes(app: FastAPI, context: ApiContext) -> None:
    """Serve the routes of handles."""
    service, workers = context.service, context.workers

    @app.post("/v1/handles", status_code=202, openapi_extra=PLAN_BODY, summary="Load a model")
    async def create(request: Request) -> Response:
        body = await json_body(request, context.limits.max_body_bytes)
        key = idempotency_key(request)
        seconds = wait_seconds(request, context.limits.max_wait_seconds)
        view = await workers.run(Pool.SUBMIT, lambda: service.submit(bodies.parse_plan(body), idempotency_key=key))
        headers = {"Location": location_of(view.id)}
        if seconds is None:
            return answer(handle_json(view), 202, headers=headers)
        headers["Preference-Applied"] = f"wait={seconds:g}"
        await until_ended(context, request, view.id, seconds)
        view = await workers.run(Pool.VIEW, lambda: service.handle(view.id))
        if view.failure is not None:
            return problem_answer(
                view.failure.as_error(),
                instance=location_of(view.id),
                headers=headers,
                facts={"handle_id": view.id},
            )
        return answer(handle_json(view), 202 if view.state in UNDER_WAY else 200, headers=headers)

    @app.get("/v1/handles", summary="Every handle, also those that ended a while ago")
    async def listing() -> Response:
        def render() -> bytes:
            return encode({"handles": [handle_json(view) for view in service.handles()]})

        return raw(await workers.run(Pool.VIEW, render))

    @app.get("/v1/handles/{handle_id}", summary="One handle: state, stages, progress, load mode, bytes")
    async def one(handle_id: str) -> Response:
        return raw(await workers.run(Pool.VIEW, lambda: encode(handle_json(service.handle(handle_id)))))

    @app.get("/v1/handles/{handle_id}/plan", summary="The split plan of a handle")
    async def plan(handle_id: str) -> Response:
        return raw(await workers.run(Pool.PLAN, lambda: encode(service.handle_plan(handle_id))))

    @app.delete("/v1/handles/{handle_id}", summary="Give the model back; cancels a load that is under way")
    async def release(handle_id: str) -> Response:
        released = await workers.run(Pool.RELEASE, lambda: service.release(handle_id))
        return answer(released.as_json())
