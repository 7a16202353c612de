"""A client of the daemon: load, wait, plan, read and release, with the daemon's problems as the errors they tell of.

Answers are the API's JSON as dictionaries (README shows them), embeddings a numpy array. Every method raises what the
daemon's problem says, as its own class of `app.errors`, or UnreachableError where no daemon answers or it breaks off.
"""

from __future__ import annotations

import io
import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

import httpx

from app.api.problems import error_from
from app.errors import BusyError, RequestError, UnreachableError
from app.loading.lifecycle import UNDER_WAY

if TYPE_CHECKING:  # most of those who load have no use for it, and it takes its time to import
    import numpy as np
    from numpy.typing import NDArray

_TIMEOUT_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_PAGE: Final = 1000

Json = dict[str, Any]


class Client:
    """A conversation with the daemon at `base_url`; a context manager.

    A call that hears nothing for `timeout_seconds` gives up. A request for a model is its path, or the body that
    README describes.
    """

    def __init__(self, base_url: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self.url: Final = base_url.rstrip("/")
        self._timeout = timeout_seconds
        try:
            self._http = httpx.Client(base_url=self.url, timeout=self._patience(0), trust_env=False)
        except (httpx.InvalidURL, ValueError) as error:
            raise UnreachableError(f"{base_url!r} is no address: {error}", url=base_url) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. What is loaded stays loaded."""
        self._http.close()

    # loading

    def plan(self, model: str | Mapping[str, Any]) -> Json:
        """Where every tensor of a model would go, and why; loads nothing."""
        return self._ask("POST", "/v1/plans", json=_body(model))

    def load(
        self,
        model: str | Mapping[str, Any],
        *,
        wait_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> Json:
        """Ask for a model; answers its handle, queued, or as it is when the load ended or `wait_seconds` have passed.

        The same key with the same request answers the same handle. A load that fails while it is waited for raises
        its failure; later ones are raised by `wait`.
        """
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        if wait_seconds is not None:
            headers["Prefer"] = f"wait={wait_seconds:g}"
        patience = self._patience(wait_seconds or 0)
        return self._ask("POST", "/v1/handles", json=_body(model), headers=headers, timeout=patience)

    def wait(
        self,
        handle_id: str,
        *,
        timeout_seconds: float | None = None,
        show: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Json:
        """The handle once its load has ended; `show` sees it every now and then until then.

        Raises the error that the load failed with, or BusyError `still_loading` after `timeout_seconds`.
        """
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            handle = self.handle(handle_id)
            if show is not None:
                show(handle)
            if handle["state"] not in UNDER_WAY:
                break
            if until is not None and time.monotonic() >= until:
                raise BusyError(
                    f"the load is still {handle['state']}", code="still_loading", retry_after_seconds=_POLL_SECONDS
                )
            time.sleep(_POLL_SECONDS)
        if handle["error"] is not None:
            raise error_from(handle["error"])
        return handle

    def release(self, handle_id: str) -> Json:
        """Give the model back, or cancel its load; `released_bytes` says what came of it. May be repeated."""
        return self._ask("DELETE", _handle(handle_id))

    # looking

    def devices(self) -> list[Json]:
        """The daemon's devices, with memory and capabilities."""
        return list(self._ask("GET", "/v1/devices")["devices"])

    def architectures(self) -> list[Json]:
        """The daemon's catalog."""
        return list(self._ask("GET", "/v1/architectures")["architectures"])

    def handles(self) -> list[Json]:
        """Every handle, also those that ended a while ago."""
        return list(self._pages("/v1/handles", "handles", {}))

    def handle(self, handle_id: str) -> Json:
        """One handle now."""
        return self._ask("GET", _handle(handle_id))

    def handle_plan(self, handle_id: str) -> Json:
        """The plan that a handle's load follows or followed."""
        return self._ask("GET", f"{_handle(handle_id)}/plan")

    # reading

    def tensors(
        self, handle_id: str, *, role: str | None = None, layer: int | None = None, device: str | None = None
    ) -> Iterator[Json]:
        """Facts of a loaded model's tensors, and where they lie; those that fit the filters."""
        filters = {"role": role, "layer": layer, "device": device}
        return self._pages(f"{_handle(handle_id)}/tensors", "tensors", filters)

    def tensor(self, handle_id: str, name: str) -> Json:
        """One tensor: its plan and its places."""
        return self._ask("GET", _tensor(handle_id, name))

    def stream_tensor(
        self,
        handle_id: str,
        name: str,
        *,
        device: str | None = None,
        copy: int | None = None,
        as_f32: bool = False,
        start: int = 0,
        stop: int | None = None,
    ) -> Iterator[bytes]:
        """Bytes `[start, stop)` of a tensor as the file has it, in pieces as they come.

        `device`: of that device's slice, as it lies there; `as_f32`: of its values as little-endian float32; `copy`:
        which, of a tensor that is placed more than once. `stop` lies behind `start`.
        """
        wishes = {"device": device, "copy": copy, "dtype": "f32" if as_f32 else None}
        headers = {}
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        path = f"{_tensor(handle_id, name)}/data"
        with self._reaching(), self._http.stream("GET", path, params=_given(wishes), headers=headers) as response:
            if response.is_error:
                response.read()
                raise self._problem(response)
            yield from response.iter_bytes()

    def read_tensor(self, handle_id: str, name: str, **wishes: Any) -> bytes:
        """All bytes that `stream_tensor` gives, with the same wishes."""
        return b"".join(self.stream_tensor(handle_id, name, **wishes))

    def embeddings(self, handle_id: str, tokens: Sequence[int], *, copy: int | None = None) -> NDArray[np.float32]:
        """Rows of the token embedding: float32 `[len(tokens), width]`.

        Where these are more than the daemon takes, or answers, at once, they are asked for in parts.
        """
        import numpy as np

        rows = [operator.index(token) for token in tokens]
        try:
            return self._rows(handle_id, rows, copy)
        except RequestError as error:
            most = error.facts.get("max_tokens")
            if error.code == "payload_too_large":
                most = (len(rows) + 1) // 2
            if not isinstance(most, int) or not 0 < most < len(rows):
                raise
        parts = []
        for at in range(0, len(rows), most):
            try:
                parts.append(self.embeddings(handle_id, rows[at : at + most], copy=copy))
            except RequestError as error:
                raise _counted_from(at, error) from error
        return np.concatenate(parts)

    def metadata(self, handle_id: str) -> list[Json]:
        """Every metadata key of a loaded model; long values are cut."""
        return list(self._ask("GET", f"{_handle(handle_id)}/metadata")["metadata"])

    def vocabulary(self, handle_id: str) -> Iterator[Json]:
        """The tokens of a loaded model, with scores and types."""
        return self._pages(f"{_handle(handle_id)}/vocabulary", "tokens", {})

    # talking

    def _rows(self, handle_id: str, tokens: list[int], copy: int | None) -> NDArray[np.float32]:
        import numpy as np

        body = _given({"tokens": tokens, "format": "npy", "copy": copy})
        response = self._send("POST", f"{_handle(handle_id)}/embeddings", json=body)
        try:
            rows: NDArray[np.float32] = np.lib.format.read_array(io.BytesIO(response.content), allow_pickle=False)
        except ValueError as error:
            raise self._stranger() from error
        return rows

    def _pages(self, path: str, member: str, filters: Mapping[str, Any]) -> Iterator[Json]:
        query: dict[str, Any] | None = _given({**filters, "limit": _PAGE})
        place: str | None = path
        while place is not None:
            page = self._ask("GET", place, params=query)
            yield from page[member]
            place, query = page["next"], None

    def _ask(self, method: str, path: str, **arguments: Any) -> Json:
        """The JSON object that the daemon answers."""
        answer = self._json(self._send(method, path, **arguments))
        if answer is None:
            raise self._stranger()
        return answer

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """A response that is no error."""
        with self._reaching():
            response = self._http.request(method, path, **arguments)
        if response.is_error:
            raise self._problem(response)
        return response

    def _problem(self, response: httpx.Response) -> Exception:
        body = self._json(response)
        return self._stranger() if body is None else error_from(body)

    def _json(self, response: httpx.Response) -> Json | None:
        """The JSON object of a response; None if it is anything else."""
        try:
            answer = response.json()
        except (ValueError, RecursionError):  # the latter for one that is nested without end
            return None
        return answer if isinstance(answer, dict) else None

    def _stranger(self) -> UnreachableError:
        return UnreachableError(f"what answers at {self.url} is no ggufd", url=self.url)

    def _patience(self, extra_seconds: float) -> httpx.Timeout:
        return httpx.Timeout(self._timeout + extra_seconds, connect=_CONNECT_SECONDS)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (httpx.RemoteProtocolError, httpx.ReadError) as error:
            raise UnreachableError(f"the daemon at {self.url} broke off: {error}", url=self.url) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"no daemon answers at {self.url}: {reason}", url=self.url) from error


def _body(model: str | Mapping[str, Any]) -> Json:
    return {"model": model} if isinstance(model, str) else dict(model)


def _counted_from(start: int, error: RequestError) -> RequestError:
    """The refusal of a part of the tokens that begins at `start`, counted from the first of all."""

    def moved(text: str) -> str:
        return re.sub(r"^tokens\[(\d+)\]", lambda match: f"tokens[{int(match[1]) + start}]", text)

    facts = {name: moved(fact) if isinstance(fact, str) else fact for name, fact in error.facts.items()}
    return type(error)(moved(error.message), code=error.code, **facts)


def _given(values: Mapping[str, Any]) -> Json:
    """What is not None."""
    return {name: value for name, value in values.items() if value is not None}


def _handle(handle_id: str) -> str:
    return f"/v1/handles/{quote(handle_id, safe='')}"


def _tensor(handle_id: str, name: str) -> str:
    return f"{_handle(handle_id)}/tensors/{quote(name, safe='')}"
