"""Lists that are answered in pages: `offset` and `limit`, and where the next page is."""

from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import Query, Request

MAX_PAGE: Final = 10_000
MAX_OFFSET: Final = 2**63 - 1

Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


def page_facts(request: Request, offset: int, limit: int, count: int, stop: int | None = None) -> dict[str, Any]:
    """`count` of all there are, `offset`, and `next`: the path of the next page, null on the last.

    `stop`: where the page ends, if that is before it is full.
    """
    stop = offset + limit if stop is None else stop
    query = {**request.query_params, "offset": stop, "limit": limit}
    more = stop < count
    path = request.scope["raw_path"].decode("ascii", "ignore")  # as it came: its escapes are part of a name
    return {"count": count, "offset": offset, "next": f"{path}?{urlencode(query)}" if more else None}
