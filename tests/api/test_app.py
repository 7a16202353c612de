"""The edge alone, over a service that only pretends."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app import __version__
from app.api import encoding
from app.api.app import create_app
from app.api.context import ApiLimits
from app.api.encoding import encode, encode_pieces
from app.api.workers import Pool, Workers
from app.errors import AccessError, BusyError, CapacityError, FileError, GgufdError
from app.loading.request import PlanRequest
from app.service import LoaderService


class Pretender:
    """A service that answers every plan with what it is told to, and is asked for nothing else."""

    def __init__(self) -> None:
        self.outcome: Exception | dict[str, Any] = {}
        self.asked: list[PlanRequest] = []
        self.readiness = (True, "ready")

    def plan(self, request: PlanRequest) -> dict[str, Any]:
        self.asked.append(request)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def ready(self) -> tuple[bool, str]:
        return self.readiness


class Edge:
    """An application over a Pretender, its client, and what it measured."""

    def __init__(self) -> None:
        self.service = Pretender()
        self.observed: list[tuple[str, str, int]] = []
        self.app = create_app(
            cast(LoaderService, self.service),
            CollectorRegistry(),
            observe=lambda method, route, status, _seconds: self.observed.append((method, route, status)),
            limits=ApiLimits(max_body_bytes=1000),
        )

    def run(self, talk: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]) -> httpx.Response:
        """The response that `talk` ends with."""

        async def within() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ggufd") as client:
                return await talk(client)

        return asyncio.run(within())

    def ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """The response to one request."""
        return self.run(lambda client: client.request(method, path, **arguments))

    def plan(self, outcome: Exception | dict[str, Any]) -> httpx.Response:
        """The response to a plan that comes to `outcome`."""
        self.service.outcome = outcome
        return self.ask("POST", "/v1/plans", json={"model": "a"})


@pytest.fixture
def edge() -> Edge:
    """A fresh application."""
    return Edge()


def require_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body, after checking that it is the problem that was expected."""
    body = cast(dict[str, Any], response.json())
    assert (status, "application/problem+json") == (response.status_code, response.headers["content-type"])
    assert (status, code, f"urn:ggufd:problem:{code}") == (body["status"], body["code"], body["type"])
    return body


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FileError("bad", code="bad_offset", tensor="t"), 422),
        (CapacityError("small", devices=[{"device": "d", "needed_bytes": 2, "free_bytes": 1}]), 507),
        (AccessError("no", code="permission_denied"), 403),
        (GgufdError("odd"), 500),
    ],
)
def test_an_error_becomes_a_problem_with_its_facts(edge: Edge, error: GgufdError, status: int) -> None:
    """Whatever the service raises on purpose is told with its status, its code and its facts."""
    body = require_problem(edge.plan(error), status, error.code)
    assert error.message == body["detail"]
    assert dict(error.facts) == {name: body[name] for name in error.facts}


def test_busy_tells_when_to_come_back(edge: Edge) -> None:
    """A 503 carries Retry-After in whole seconds."""
    response = edge.plan(BusyError("full", code="queue_full", retry_after_seconds=2.5))
    require_problem(response, 503, "queue_full")
    assert "3" == response.headers["retry-after"]


def test_an_unforeseen_error_gives_nothing_away(edge: Edge) -> None:
    """An exception nobody raised on purpose is a 500 without its message, its type or a trace."""
    response = edge.plan(ZeroDivisionError("secret"))
    require_problem(response, 500, "internal")
    assert not any(word in response.text for word in ("secret", "ZeroDivision", "Traceback", ".py"))


def test_an_unknown_path_is_a_problem(edge: Edge) -> None:
    """What is not served answers 404 as a problem, also with a trailing slash, and never redirects."""
    for path in ("/v1", "/v1/handles/", "/v1/nothing", "/docs", "/%00", "/v1/handles/a/b/c"):
        require_problem(edge.ask("GET", path), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/a%0Ab", "/a\\nb"),
        ("/a%09b%0D", "/a\\tb\\r"),
        ("/%1b[31m", "/\\x1b[31m"),
        ("/a%3Fb%23c", "/a?b#c"),
        ("/" + "x" * 300, "/" + "x" * 199 + "…"),
    ],
)
def test_a_path_is_told_as_it_was_asked_for(edge: Edge, path: str, told: str) -> None:
    """The problem of an unknown path names all its characters, those that cannot be shown as escapes."""
    assert f"nothing is served at {told}" == require_problem(edge.ask("GET", path), 404, "not_found")["detail"]


def test_the_index_names_what_is_served(edge: Edge) -> None:
    """`/` says what this is, and each method and path that the application has, with a sentence."""
    index = edge.ask("GET", "/").json()
    assert ("ggufd", __version__, "/openapi.json") == (index["name"], index["version"], index["openapi"])
    listed = {(one["method"], one["path"]) for one in index["routes"]}
    assert {("GET", "/"), ("POST", "/v1/handles"), ("GET", "/v1/files/{path}"), ("GET", "/metrics")} <= listed
    assert all(one["summary"] for one in index["routes"] if one["path"] != "/openapi.json")


def test_the_pulse_can_be_felt_without_a_body(edge: Edge) -> None:
    """HEAD is answered where GET is cheap."""
    for path in ("/", "/healthz", "/metrics"):
        assert (200, b"") == ((head := edge.ask("HEAD", path)).status_code, head.content), path


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/handles", "GET, POST"),
        ("POST", "/v1/handles/x", "DELETE, GET"),
        ("DELETE", "/v1/plans", "POST"),
        ("BREW", "/healthz", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_a_problem_that_names_the_right_ones(
    edge: Edge, method: str, path: str, allowed: str
) -> None:
    """A path with another method answers 405 with every method it has."""
    response = edge.ask(method, path)
    require_problem(response, 405, "method_not_allowed")
    assert allowed == response.headers["allow"]


@pytest.mark.parametrize("declared", [None, "text/plain", "application/x-www-form-urlencoded", "json", "x" * 500])
def test_a_body_must_say_that_it_is_json(edge: Edge, declared: str | None) -> None:
    """A body of another kind, or of none, answers 415: no page in a browser can send JSON here unasked."""
    headers = {} if declared is None else {"Content-Type": declared}
    body = require_problem(edge.ask("POST", "/v1/plans", content=b"{}", headers=headers), 415, "unsupported_media_type")
    assert "application/json" == body["expected"]


@pytest.mark.parametrize("declared", ["application/json", "application/JSON; charset=utf-8", "application/x+json"])
def test_json_is_taken_under_all_its_names(edge: Edge, declared: str) -> None:
    """Parameters and structured suffixes of the media type change nothing."""
    response = edge.ask("POST", "/v1/plans", content=b'{"model": "a"}', headers={"Content-Type": declared})
    assert 200 == response.status_code
    assert [PlanRequest(model="a")] == edge.service.asked


def test_a_malformed_body_is_a_problem_that_names_the_field(edge: Edge) -> None:
    """A body that means nothing answers 400, before the service hears of it."""
    body = require_problem(edge.ask("POST", "/v1/plans", json={"model": "a", "n_gpu_layers": "3"}), 400, "bad_request")
    assert "n_gpu_layers" == body["field"]
    assert [] == edge.service.asked


def test_a_body_that_says_it_is_too_large_is_not_read(edge: Edge) -> None:
    """A declared length over the limit answers 413 without a byte of the body."""
    headers = {"Content-Type": "application/json", "Content-Length": str(10**30)}
    body = require_problem(edge.ask("POST", "/v1/plans", content=b"{}", headers=headers), 413, "payload_too_large")
    assert 1000 == body["limit_bytes"]


def test_a_body_that_turns_out_too_large_is_not_read_to_its_end(edge: Edge) -> None:
    """Without a declared length, reading stops as soon as the limit is passed."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1_000_000:
            sent += 400
            yield b" " * 400

    response = edge.ask("POST", "/v1/plans", content=endless(), headers={"Content-Type": "application/json"})
    require_problem(response, 413, "payload_too_large")


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("POST", "/v1/plans?dry_run=1", "dry_run"),
        ("POST", "/v1/handles?wait=5", "wait"),
        ("GET", "/v1/devices?offset=1", "offset"),
        ("GET", "/v1/architectures?name=llama", "name"),
        ("GET", "/v1/handles/h-1?wait=5", "wait"),
        ("GET", "/v1/handles/h-1/plan?audit=1", "audit"),
        ("GET", "/v1/handles/h-1/tensors?limit=1&limit=2", "limit"),
        ("GET", "/v1/handles/h-1/tensors/a?x", "x"),
        ("GET", "/v1/handles/h-1/metadata?=1", ""),
        ("DELETE", "/v1/handles/h-1?force=1", "force"),
    ],
)
def test_a_parameter_that_would_be_ignored_is_refused(edge: Edge, method: str, path: str, field: str) -> None:
    """Every route names the parameter that it does not know, or that is given twice, before it does anything."""
    problem = require_problem(edge.ask(method, path), 400, "bad_request")
    assert field == problem["field"]
    assert not edge.service.asked


def test_probes_do_not_mind_parameters(edge: Edge) -> None:
    """Balancers append what they like to the path of a probe."""
    assert [200, 200, 200] == [edge.ask("GET", f"/{it}?t=1").status_code for it in ("healthz", "readyz", "metrics")]


@pytest.mark.parametrize("target", ["http://ggufd", "HTTP://elsewhere:80"])
@pytest.mark.parametrize("path", ["/healthz", "/v1/plans?x=1", "/v1/none%2F", ""])
def test_a_target_in_absolute_form_is_its_path(edge: Edge, target: str, path: str) -> None:
    """Requests that come as if to a proxy are answered as those that come as to a server."""

    async def absolute(scope: Scope, receive: Receive, send: Send) -> None:
        given = {"path": target + scope["path"].removesuffix("/"), "raw_path": target.encode() + scope["raw_path"]}
        await edge.app({**scope, **(given if path == "" else {**given, "path": target + scope["path"]})}, receive, send)

    async def both() -> tuple[httpx.Response, httpx.Response]:
        answers = []
        for app in (edge.app, absolute):
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://ggufd") as client:
                answers.append(await client.get(path))
        return answers[0], answers[1]

    plain, other = asyncio.run(both())
    assert (plain.status_code, plain.content) == (other.status_code, other.content)


def test_a_length_told_twice_is_refused(edge: Edge) -> None:
    """Whoever stands between could take the other length for the true one: 400, and the connection is closed."""
    headers = {"Content-Length": "2", "Transfer-Encoding": "chunked", "Content-Type": "application/json"}
    refused = edge.ask("POST", "/v1/plans", content=b"{}", headers=headers)
    assert "Transfer-Encoding" == require_problem(refused, 400, "bad_request")["field"]
    assert "close" == refused.headers["connection"]


def test_readiness_says_why_not(edge: Edge) -> None:
    """Ready answers 200; not ready answers 503 with the reason and when to ask again."""
    assert 200 == edge.ask("GET", "/readyz").status_code
    edge.service.readiness = (False, "no devices are known")
    response = edge.ask("GET", "/readyz")
    assert "no devices" in require_problem(response, 503, "not_ready")["detail"]
    assert "retry-after" in response.headers


def test_liveness_needs_no_thread(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no worker thread can be had, liveness answers; readiness and metrics have threads of their own kind."""

    async def none_free(_workers: Workers, pool: Pool, _call: Callable[[], Any]) -> Any:
        raise RuntimeError(pool)

    monkeypatch.setattr(Workers, "run", none_free)
    assert 200 == edge.ask("GET", "/healthz").status_code
    assert 500 == edge.ask("GET", "/readyz").status_code


def test_requests_are_measured_by_method_template_and_status(edge: Edge) -> None:
    """The labels come from closed sets: the route's template, known methods, and nothing a client can invent."""
    edge.plan({})
    edge.ask("GET", "/v1/handles/some-id/plan")
    edge.ask("GET", "/made/up")
    edge.ask("BREW", "/v1/plans")
    assert [
        ("POST", "/v1/plans", 200),
        ("GET", "/v1/handles/{handle_id}/plan", 500),
        ("GET", "none", 404),
        ("other", "/v1/plans", 405),
    ] == edge.observed


def test_the_description_of_the_api_names_every_route_and_the_body(edge: Edge) -> None:
    """OpenAPI lists what is served, and the body of plans with all its fields."""
    described = edge.ask("GET", "/openapi.json").json()
    served = {route.path_format for route in edge.app.routes if isinstance(route, Route)} - {"/openapi.json"}
    assert served == described["paths"].keys()
    assert {"model", "split_mode", "devices", "overrides"} <= described["components"]["schemas"]["PlanBody"][
        "properties"
    ].keys()


def test_answers_are_never_cached(edge: Edge) -> None:
    """Every answer is a state of the moment."""
    assert "no-store" == edge.plan({}).headers["cache-control"]


def test_an_answer_has_a_line_for_each_member_and_each_object_of_a_list(edge: Edge) -> None:
    """Line tools can search a plan: every tensor has a line of its own."""
    text = edge.plan({"fits": True, "tensors": [{"name": "a"}, {"name": "b"}], "warnings": []}).text
    assert ['  "fits": true,', '    {"name": "a"},', '    {"name": "b"}', '  "warnings": []'] == [
        line for line in text.splitlines() if '"name"' in line or "fits" in line or "warnings" in line
    ]


def test_what_utf8_cannot_carry_is_escaped(edge: Edge) -> None:
    """A path may hold any bytes; in JSON they are escapes, and the answer stays valid."""
    response = edge.plan({"model": "a\udcff.gguf"})
    assert b"\\udcff" in response.content
    assert "a\udcff.gguf" == response.json()["model"]


LONG: dict[str, Any] = {
    "text": '"\\\n\x7f\udcffé😀' * 50_000,
    "numbers": [*range(2000)],
    "items": [{"key": "k" * 3, "value": ["x" * 40_000, 1.5, None]}, {"key": {}, "value": []}, 7],
    "inner": {"text": "y" * 40_000, "more": {str(number): [number] for number in range(600)}},
    "empty": {},
}


def test_long_values_are_encoded_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long texts and lists are, and wherever, no one call encodes more than a little; the JSON is the same."""
    encoded = encode(LONG)
    assert LONG == json.loads(encoded)
    made: list[int] = []
    dumps = encoding._dumps

    def watched(value: Any) -> str:
        made.append(len(text := dumps(value)))
        return text

    monkeypatch.setattr(encoding, "_dumps", watched)
    pieces = [*encode_pieces(LONG)]
    assert encoded == b"".join(pieces)
    assert max(made) < 1 << 17
    assert all(1 << 20 <= len(piece) < 1.2 * (1 << 20) for piece in pieces[:-1])


@pytest.mark.parametrize("copies", [1, 6])
def test_an_answer_is_the_same_in_one_or_many_pieces(edge: Edge, copies: int) -> None:
    """What is sent in pieces has the headers and the body that it would have in one."""
    plan = {f"copy{number}": LONG | {"text": "z" * 400_000} for number in range(copies)}
    response = edge.plan(plan)
    assert (200, encode(plan)) == (response.status_code, response.content)
    assert {
        "cache-control": "no-store",
        "content-type": "application/json",
        "content-length": str(len(response.content)),
    } == dict(response.headers)
    assert (copies > 1) == (len(response.content) > 1 << 20)
