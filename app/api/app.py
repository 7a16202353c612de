"""The HTTP edge, composed: routes, problems, measurements. It translates and decides nothing."""

from typing import Any, Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.routing import Route

from app import __version__
from app.api import problems
from app.api.answers import answer, problem_answer
from app.api.bodies import PlanBody
from app.api.budget import Budget
from app.api.catalogue import add_catalogue_routes
from app.api.contents import add_content_routes
from app.api.context import DEFAULT_LIMITS, ApiContext, ApiLimits
from app.api.faults import in_words
from app.api.files import add_file_routes
from app.api.framing import Framing
from app.api.handles import add_handle_routes
from app.api.index import add_index_route
from app.api.leaving import Leaving
from app.api.names import allow_any_name
from app.api.observing import ObserveRequest, Observing
from app.api.parameters import require_known
from app.api.probes import add_probe_routes
from app.api.tensors import add_tensor_routes
from app.api.workers import Workers
from app.errors import GgufdError, NotFoundError, RequestError
from app.modelfile.shortage import shortage
from app.modelfile.text import brief
from app.service import LoaderService

_SHOWN: Final = 200
_PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "RFC 9457; the facts stand beside these members",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "enum": [*problems.TITLES]},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
    },
}
_PROBLEM_RESPONSE: Final[dict[str, Any]] = {
    "description": "A problem",
    "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


class Application(FastAPI):
    """The HTTP application, which describes itself as it is."""

    def openapi(self) -> dict[str, Any]:
        """The description of the API, with the bodies that the routes read by themselves and the problems they answer.

        FastAPI would promise an error of its own kind instead.
        """
        if self.openapi_schema is None:
            schema = super().openapi()
            body = PlanBody.model_json_schema(ref_template="#/components/schemas/{model}")
            parts = body.pop("$defs", {})
            schema["components"] = {"schemas": {**parts, "PlanBody": body, "Problem": _PROBLEM_SCHEMA}}
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    operation["responses"]["default"] = _PROBLEM_RESPONSE
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_app(
    service: LoaderService,
    registry: CollectorRegistry,
    *,
    observe: ObserveRequest,
    limits: ApiLimits = DEFAULT_LIMITS,
) -> Application:
    """The application over `service`; `observe` is told of every request, `registry` is what `/metrics` shows."""
    allow_any_name()
    app = Application(
        title="ggufd",
        version=__version__,
        summary="A daemon that loads GGUF models on request",
        openapi_url="/openapi.json",
        docs_url=None,  # the usual pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(require_known)],
    )
    context = ApiContext(service=service, workers=Workers(), limits=limits, answers=Budget(limits.max_answers_bytes))
    add_index_route(app)
    add_handle_routes(app, context)
    add_tensor_routes(app, context)
    add_content_routes(app, context)
    add_catalogue_routes(app, context)
    add_file_routes(app, context)
    add_probe_routes(app, context, registry)
    app.add_exception_handler(GgufdError, _deliberate)
    app.add_exception_handler(HTTPException, _refused_by_routing)
    app.add_exception_handler(RequestValidationError, _invalid_parameter)
    for kind in (MemoryError, OSError):
        app.add_exception_handler(kind, _short_of_something)
    app.add_exception_handler(Exception, _unforeseen)
    app.add_middleware(Framing)
    app.add_middleware(Leaving)
    app.add_middleware(Observing, observe=observe)  # the outermost: it measures what all others answer
    return app


async def _deliberate(_request: Request, error: Exception) -> Response:
    assert isinstance(error, GgufdError)
    return problem_answer(error)


async def _refused_by_routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem_answer(NotFoundError(f"nothing is served at {_shown(request)}"))
    if error.status_code == 405:
        allowed = _methods_at(request)
        refusal = RequestError(
            f"{request.method[:_SHOWN]} is not among the methods of {_shown(request)}: {', '.join(allowed)}",
            code="method_not_allowed",
            allowed=[*allowed],
        )
        return problem_answer(refusal, headers={"Allow": ", ".join(allowed)})
    return problem_answer(RequestError(str(error.detail), field=None), headers=error.headers)


async def _invalid_parameter(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    field = ".".join(str(step) for step in fault["loc"][1:]) or "body"
    return problem_answer(RequestError(f"{field}: {in_words(fault)}", field=field))


async def _short_of_something(_request: Request, error: Exception) -> Response:
    """What the machine lacks is told as such; other faults of the system are nobody's to foresee."""
    want = shortage(error, "the request")
    if want is None:
        raise error
    return problem_answer(want)


async def _unforeseen(_request: Request, _error: Exception) -> Response:
    return answer(problems.unforeseen(), 500, media_type=problems.MEDIA_TYPE)


def _methods_at(request: Request) -> list[str]:
    """Every method of the requested path: its routes have one each, and routing itself names but the first's."""
    matching = (route for route in request.app.routes if isinstance(route, Route))
    return sorted(
        {
            method
            for route in matching
            if route.path_regex.match(request.scope["path"])
            for method in route.methods or ()
        }
    )


def _shown(request: Request) -> str:
    """The path as it was asked for; `request.url` has lost some of its characters."""
    return brief(request.scope["path"])
