"""What every route needs: the service, the worker pools and the edge's own limits."""

from dataclasses import dataclass
from typing import Any, Final

from app.api.budget import Budget
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
    """How much one request may ask of the edge, and how many clients there may be. Sizes in bytes, times in seconds.

    A client sends a request's header within `header_seconds`, and something of its body in each such time; of an
    answer that waits for it, it reads something in each `read_seconds`. `max_answers_bytes` are held for answers at a
    time (`Budget`).
    """

    max_body_bytes: int = MIB
    max_wait_seconds: float = 600.0
    max_answers_bytes: int = 512 * MIB
    max_connections: int = 1000
    header_seconds: float = 30.0
    read_seconds: float = 120.0


DEFAULT_LIMITS: Final = ApiLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """One application's parts."""

    service: LoaderService
    workers: Workers
    limits: ApiLimits
    answers: Budget
