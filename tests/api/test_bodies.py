import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.api import jsontext
from app.api.bodies import CapabilitiesBody, parse_plan, plan_request
from app.devices.facts import Capabilities
from app.errors import RequestError
from app.loading.context import ContextRequest
from app.loading.negotiation import LoadMode
from app.loading.request import DeclaredDevice, PlanRequest
from app.planner.plan import Override, SplitMode

FULL: dict[str, Any] = {
    "model": "a.gguf",
    "split_mode": "tensor",
    "devices": ["host0", {"name": "d", "kind": "simulated", "memory_bytes": 8, "capabilities": {"async": False}}],
    "tensor_split": [3, 1.5],
    "main_device": "d",
    "n_gpu_layers": 3,
    "overrides": [{"pattern": "ffn", "device": "host"}],
    "load_mode": "mmap+mlock",
    "context": {"n_ctx": 8192, "type_k": "q8_0", "swa_full": False},
    "allocator": "reference",
}


def fault(text: bytes) -> RequestError:
    """The error that a body is refused with."""
    with pytest.raises(RequestError) as caught:
        parse_plan(text)
    return caught.value


def test_the_smallest_body_has_every_default() -> None:
    """A model alone is a request; every other field has the default that the wire promises."""
    assert PlanRequest(model="a.gguf") == parse_plan(b'{"model": "a.gguf"}')


def test_every_field_arrives() -> None:
    """Each field of a body is found again in the request, as a value of its own."""
    expected = PlanRequest(
        model="a.gguf",
        split_mode=SplitMode.TENSOR,
        devices=(
            "host0",
            DeclaredDevice(name="d", kind="simulated", memory_bytes=8, capabilities=Capabilities(asynchronous=False)),
        ),
        tensor_split=(3.0, 1.5),
        main_device="d",
        n_gpu_layers=3,
        overrides=(Override(pattern="ffn", device="host"),),
        load_mode=LoadMode.MMAP_MLOCK,
        context=ContextRequest(n_ctx=8192, type_k="q8_0", swa_full=False),
    )
    assert expected == parse_plan(json.dumps(FULL).encode())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"model": "x" * 4097}, "model"),
        ({"split_mode": "diagonal"}, "split_mode"),
        ({"context": 5}, "context"),
        ({"context": {"n_ctx": "8192"}}, "context.n_ctx"),
        ({"context": {"n_ctx": 1.0}}, "context.n_ctx"),
        ({"context": {"flash_attention": 1}}, "context.flash_attention"),
        ({"context": {"type_k": None}}, "context.type_k"),
        ({"context": {"kv_unified": True}}, "context.kv_unified"),
        ({"split_mode": 1}, "split_mode"),
        ({"devices": "host0"}, "devices"),
        ({"devices": [7]}, "devices[0]"),
        ({"devices": [None]}, "devices[0]"),
        ({"devices": ["a", {"name": "d"}]}, "devices[1].memory_bytes"),
        ({"devices": [{"name": "d", "memory_bytes": "8"}]}, "devices[0].memory_bytes"),
        ({"devices": [{"name": "d", "memory_bytes": 8.0}]}, "devices[0].memory_bytes"),
        ({"devices": [{"name": "d", "memory_bytes": 8, "speed": 1}]}, "devices[0].speed"),
        ({"devices": [{"name": "d", "memory_bytes": 8, "capabilities": {"async": 1}}]},
         "devices[0].capabilities.async"),
        ({"devices": [{"name": "d", "memory_bytes": 8, "capabilities": {"split_buffer": True}}]},
         "devices[0].capabilities.split_buffer"),
        ({"devices": ["a"] * 1000}, "devices"),
        ({"tensor_split": ["1"]}, "tensor_split[0]"),
        ({"tensor_split": [True]}, "tensor_split[0]"),
        ({"tensor_split": [1] * 1000}, "tensor_split"),
        ({"tensor_split": [10**400]}, "tensor_split[0]"),
        ({"n_gpu_layers": "3"}, "n_gpu_layers"),
        ({"n_gpu_layers": 3.5}, "n_gpu_layers"),
        ({"n_gpu_layers": True}, "n_gpu_layers"),
        ({"overrides": {"a": "b"}}, "overrides"),
        ({"overrides": [{"pattern": "a"}]}, "overrides[0].device"),
        ({"overrides": [{"pattern": "a" * 5000, "device": "host"}]}, "overrides[0].pattern"),
        ({"load_mode": "fast"}, "load_mode"),
        ({"allocator": None}, "allocator"),
        ({"by name": 1}, "by name"),
        ({"declared": 1}, "declared"),
        ({"nonsense": 1}, "nonsense"),
        ({"line\nfeed": 1}, "line\\nfeed"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    """What has another type or bound than it must, and what nobody knows, is refused, and its path is told."""
    error = fault(json.dumps({**FULL, **change}).encode())
    assert field == error.facts["field"]
    assert field in error.message


@pytest.mark.parametrize(
    ("around", "field"),
    [
        (lambda many: many, "f0"),
        (lambda many: {"model": 5, **many}, "f0"),
        (lambda many: {"model": "a", "context": many}, "context.f0"),
        (lambda many: {"model": "a", "devices": ["d", many]}, "devices[1].f0"),
        (lambda many: {"model": "a", "devices": [{"capabilities": many}]}, "devices[0].capabilities.f0"),
        (lambda many: {"model": "a", "overrides": [{}, many]}, "overrides[1].f0"),
    ],
)
def test_the_first_unknown_field_is_named_and_no_others_are_looked_for(
    around: Callable[[dict[str, int]], dict[str, Any]], field: str
) -> None:
    """A body full of fields that nobody knows never gets to the library that would list them all in one call."""
    error = fault(json.dumps(around({f"f{number}": 1 for number in range(10_000)})).encode())
    assert (field, None) == (error.facts["field"], error.__cause__)


def test_one_wrong_override_is_enough() -> None:
    """Of a long list of what is no override, no more than the first is judged."""
    cause = fault(json.dumps({"model": "a", "overrides": [1] * 4000}).encode()).__cause__
    assert isinstance(cause, ValidationError)
    assert 1 == cause.error_count()


def test_a_missing_model_is_named() -> None:
    """A body without a model says that the model is missing."""
    assert "model" == fault(b"{}").facts["field"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'"model"',
        b"null",
        b"\xff\xfe",
        b'{"model": "a", "model": "b"}',
        b'{"model": "a", "tensor_split": [NaN]}',
        b'{"model": "a", "tensor_split": [Infinity]}',
        b'{"model": "a", "tensor_split": [-Infinity]}',
        b'{"model": "a", "n_gpu_layers": ' + b"9" * 10_000 + b"}",
        b'{"model": ' + b"[" * 200_000,
        b'{"model": ' + b'{"a":' * 200_000,
        b'{"model": "a"} {"model": "b"}',
        b'{"model": "\\ud800"}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    """Broken, doubled, endless and non-standard JSON is a malformed request, never anything else."""
    assert "bad_request" == fault(text).code


def test_an_infinite_number_is_a_number_and_judged_later() -> None:
    """1e400 is JSON, and too large for a float: it arrives as infinity, for the check of ratios to name."""
    assert (float("inf"),) == parse_plan(b'{"model": "a", "tensor_split": [1e400]}').tensor_split


def test_the_body_knows_the_capabilities_by_the_names_of_the_devices() -> None:
    """A capability is spelled alike in a request and in the list of devices."""
    assert Capabilities().as_json() == CapabilitiesBody().model_dump(by_alias=True)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_request_error(text: bytes) -> None:
    """Whatever is sent as a body, it is a request or a RequestError."""
    with contextlib.suppress(RequestError):
        parse_plan(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(sorted(FULL)), JSON))
def test_no_values_raise_anything_but_a_request_error(body: dict[str, Any]) -> None:
    """Whatever JSON stands in the known fields, it is a request or a RequestError."""
    with contextlib.suppress(RequestError):
        parse_plan(json.dumps(body).encode())


@given(JSON)
def test_ordinary_json_is_read_as_python_reads_it(value: Any) -> None:
    """Strictness changes nothing about texts that are standard JSON."""
    text = json.dumps(value)
    if not any(word in text for word in ("NaN", "Infinity")):
        assert json.loads(text) == jsontext.parse(text.encode())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": 5}, "model: a string is meant"),
        ({"model": ""}, "model: too short: it takes 1 or more"),
        ({"model": "m" * 5000}, "model: at most 4096 characters are taken"),
        ({"model": "m", "split_mode": "diagonal"}, "split_mode: only 'none', 'layer', 'row' or 'tensor' can be meant"),
        ({"model": "m", "tensor_split": "1,2"}, "tensor_split: a list is meant"),
        ({"model": "m", "tensor_split": ["1"]}, "tensor_split[0]: a number is meant"),
        ({"model": "m", "devices": ["d"] * 200}, "devices: at most 128 are taken"),
        ({"model": "m", "devices": [1]}, "devices[0]: a device is a name, or an object that declares one"),
        ({"model": "m", "devices": [{"name": "d", "memory_bytes": 1.5}]}, "devices[0].memory_bytes: a whole number"),
        ({"model": "m", "overrides": [1]}, "overrides[0]: an object is meant"),
        ({"model": "m", "context": {"swa_full": 1}}, "context.swa_full: true or false is meant"),
    ],
)
def test_what_is_wrong_is_said_in_words_of_our_own(body: dict[str, Any], words: str) -> None:
    """No message shows by which library a body was checked."""
    with pytest.raises(RequestError) as caught:
        plan_request(body)
    assert caught.value.message.startswith(words)
    assert not any(word in caught.value.message for word in ("Input should", "validation", "should have"))
