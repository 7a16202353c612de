"""Talking to a daemon over HTTP: its answers as JSON, its problems as errors."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx

from app.api.problems import error_from
from app.errors import UnreachableError
from app.loading.lifecycle import UNDER_WAY

_TIMEOUT: Final = httpx.Timeout(60.0, connect=5.0)
_POLL_SECONDS: Final = 0.1


class Talk:
    """A conversation with the daemon at `url`; a context manager."""

    def __init__(self, url: str) -> None:
        self.url: Final = url.rstrip("/")
        try:
            self._client = httpx.Client(base_url=self.url, timeout=_TIMEOUT, trust_env=False)
        except (httpx.InvalidURL, ValueError) as error:
            raise UnreachableError(f"{url!r} is no address: {error}", url=url) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that the daemon answers. Raises what its problem tells of, or UnreachableError."""
        try:
            response = self._client.request(method, path, json=body)
            answer = response.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"no daemon answers at {self.url}: {reason}", url=self.url) from error
        except ValueError as error:
            raise UnreachableError(f"what answers at {self.url} is no ggufd", url=self.url) from error
        if not isinstance(answer, dict):
            raise UnreachableError(f"what answers at {self.url} is no ggufd", url=self.url)
        if response.is_error:
            raise error_from(answer)
        return answer

    def watch(self, handle_id: str, show: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """The handle once its load has ended; `show` sees it every now and then until then.

        Raises the error that the load failed with.
        """
        while True:
            handle = self.ask("GET", f"/v1/handles/{handle_id}")
            show(handle)
            if handle["state"] not in UNDER_WAY:
                break
            time.sleep(_POLL_SECONDS)
        if handle["error"] is not None:
            raise error_from(handle["error"])
        return handle
