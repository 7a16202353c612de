"""What every route needs: the service, the worker pools and the edge's own limits."""

from dataclasses import dataclass
from typing import Any, Final

from app.api.workers import Workers
from app.service import LoaderService
from app.units import MIB

PLAN_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/PlanBody"}}},
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """How much one request may ask of the edge."""

    max_body_bytes: int = MIB
    max_wait_seconds: float = 600.0


DEFAULT_LIMITS: Final = ApiLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """One application's parts."""

    service: LoaderService
    workers: Workers
    limits: ApiLimits
