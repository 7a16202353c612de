"""`/`: what this is, and what it answers, for whoever found the port."""

from collections.abc import Iterator

from fastapi import FastAPI, Response
from starlette.routing import Route

from app.api.answers import answer


def add_index_route(app: FastAPI) -> None:
    """Serve the index."""

    @app.get("/", summary="What this is, and its routes")
    @app.head("/", include_in_schema=False)
    async def index() -> Response:
        routes = [
            {"method": method, "path": route.path_format, "summary": getattr(route, "summary", None)}
            for method, route in served_routes(app)
        ]
        return answer(
            {
                "name": app.title,
                "version": app.version,
                "summary": app.summary,
                "openapi": "/openapi.json",
                "routes": routes,
            }
        )


def served_routes(app: FastAPI) -> Iterator[tuple[str, Route]]:
    """Every method and route of the application, without the HEAD that goes along with a GET."""
    for route in app.routes:
        if isinstance(route, Route):
            yield from ((method, route) for method in sorted(route.methods or ()) if method != "HEAD")


def expected_answers(app: FastAPI) -> Iterator[tuple[str, str, int]]:
    """Method, template and status of what each route answers when all goes well, as requests are reported."""
    for method, route in served_routes(app):
        yield method, route.path_format, getattr(route, "status_code", None) or 200
