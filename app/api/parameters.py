"""Parameters of a request's URL: those that a route of the API does not declare are refused, never ignored.

Probes are left alone: balancers and scrapers append what they like to their paths.
"""

from typing import Final

from fastapi import Request
from fastapi.routing import APIRoute

from app.errors import RequestError

_API: Final = "/v1/"


async def require_known(request: Request) -> None:
    """Refuse parameters that would be ignored, and those given twice. Raises RequestError with `field`."""
    names = [name for name, _ in request.query_params.multi_items()]
    route = request.scope["route"]
    assert isinstance(route, APIRoute), "a dependency belongs to a route"
    if not names or not route.path.startswith(_API):
        return
    known = {parameter.alias for parameter in route.dependant.query_params}
    for name in names:
        if name not in known:
            raise RequestError(f"{name[:80]}: there is no such parameter", field=name[:80])
        if names.count(name) > 1:
            raise RequestError(f"{name}: the parameter is given twice", field=name)
