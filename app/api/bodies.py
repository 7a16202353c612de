"""The bodies of requests: what a client may write, field by field, and the request it means.

Shapes and types are checked here; what the values mean together is `loading.request.check_request`'s business. Nothing
is converted: a number in quotes is not a number.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
)
from pydantic import ValidationError as PydanticError

from app.api import jsontext
from app.api.faults import in_words
from app.devices.facts import Capabilities
from app.errors import RequestError
from app.loading.context import ContextRequest
from app.loading.negotiation import LoadMode
from app.loading.request import MAX_LISTED_DEVICES, MAX_OVERRIDES, DeclaredDevice, PlanRequest
from app.planner.plan import Allocator, Override, SplitMode

MAX_PATH_CHARACTERS: Final = 4096  # PATH_MAX
MAX_PATTERN_CHARACTERS: Final = 4096
_SHOWN: Final = 80


def _kind_of_device(value: Any) -> str | None:
    if isinstance(value, str):
        return "by name"
    return "declared" if isinstance(value, (dict, DeclaredDeviceBody)) else None


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    inside: ClassVar[Mapping[str, "type[_Body]"]] = {}
    """The fields that hold an object, and which."""
    listed: ClassVar[Mapping[str, "type[_Body]"]] = {}
    """The fields that hold a list of objects, and which."""


class CapabilitiesBody(_Body):
    """What a declared device can do; a capability that is left out is there."""

    asynchronous: StrictBool = Field(default=True, alias="async")
    host_buffer: StrictBool = True
    buffer_from_host_ptr: StrictBool = True
    events: StrictBool = True
    mmap_support: StrictBool = True


class DeclaredDeviceBody(_Body):
    """A device that isn't here: for planning, or, of kind `simulated`, for rehearsing a load."""

    inside = {"capabilities": CapabilitiesBody}

    name: StrictStr
    kind: StrictStr = "simulated"
    memory_bytes: StrictInt
    free_bytes: StrictInt | None = None
    capabilities: CapabilitiesBody = Field(default_factory=CapabilitiesBody)


class OverrideBody(_Body):
    """Tensors whose name the pattern matches (RE2, anywhere in the name; the first match wins) go to the device."""

    pattern: StrictStr = Field(max_length=MAX_PATTERN_CHARACTERS)
    device: StrictStr


class ContextBody(_Body):
    """The context to plan caches for; 0 tokens mean as many as the model was trained on."""

    n_ctx: StrictInt = 0
    n_seq_max: StrictInt = 1
    n_ubatch: StrictInt = 512
    type_k: StrictStr = "f16"
    type_v: StrictStr = "f16"
    flash_attention: StrictBool = True
    swa_full: StrictBool = True


Device = Annotated[
    Annotated[StrictStr, Tag("by name")] | Annotated[DeclaredDeviceBody, Tag("declared")],
    Discriminator(
        _kind_of_device,
        custom_error_type="device",
        custom_error_message="a device is a name, or an object that declares one",
    ),
]


class PlanBody(_Body):
    """A model, and how it shall be spread over devices. The same body plans and loads."""

    inside = {"context": ContextBody}
    listed = {"devices": DeclaredDeviceBody, "overrides": OverrideBody}

    model: StrictStr = Field(min_length=1, max_length=MAX_PATH_CHARACTERS)
    split_mode: Annotated[SplitMode, Field(strict=False)] = SplitMode.LAYER
    devices: list[Device] | None = Field(default=None, max_length=MAX_LISTED_DEVICES)
    tensor_split: list[StrictFloat] | None = Field(default=None, max_length=MAX_LISTED_DEVICES)
    main_device: StrictStr | None = None
    n_gpu_layers: StrictInt = -1
    overrides: Annotated[list[OverrideBody], FailFast()] = Field(default_factory=list, max_length=MAX_OVERRIDES)
    load_mode: Annotated[LoadMode, Field(strict=False)] = LoadMode.AUTO
    context: ContextBody | None = None
    allocator: Annotated[Allocator, Field(strict=False)] = Allocator.REFERENCE

    def request(self) -> PlanRequest:
        """The request this body means: copied, so that nothing of the client's is shared."""
        return PlanRequest(
            model=self.model,
            split_mode=self.split_mode,
            devices=None if self.devices is None else tuple(_device(device) for device in self.devices),
            tensor_split=None if self.tensor_split is None else tuple(self.tensor_split),
            main_device=self.main_device,
            n_gpu_layers=self.n_gpu_layers,
            overrides=tuple(Override(pattern=one.pattern, device=one.device) for one in self.overrides),
            load_mode=self.load_mode,
            context=None if self.context is None else ContextRequest(**self.context.model_dump()),
            allocator=self.allocator,
        )


def parse_plan(text: bytes) -> PlanRequest:
    """The request that a body means. Raises RequestError with `field`: the path of what is wrong, or null for all."""
    value = jsontext.parse(text)
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", field=None)
    return plan_request(value)


def plan_request(value: dict[str, Any]) -> PlanRequest:
    """The request that a decoded JSON object means. Raises RequestError with `field`."""
    _require_known(value, PlanBody, ())
    try:
        return PlanBody.model_validate(value).request()
    except PydanticError as error:
        raise _first_fault(error) from error
    except OverflowError as error:  # an integer too large for a float, where a float is meant
        raise RequestError("a number in the body is out of range", field=None) from error


def _device(body: str | DeclaredDeviceBody) -> str | DeclaredDevice:
    if isinstance(body, str):
        return body
    can = body.capabilities
    return DeclaredDevice(
        name=body.name,
        kind=body.kind,
        memory_bytes=body.memory_bytes,
        free_bytes=body.free_bytes,
        capabilities=Capabilities(
            asynchronous=can.asynchronous,
            host_buffer=can.host_buffer,
            buffer_from_host_ptr=can.buffer_from_host_ptr,
            events=can.events,
            mmap_support=can.mmap_support,
        ),
    )


def _first_fault(error: PydanticError) -> RequestError:
    fault = error.errors(include_url=False, include_input=False)[0]
    field = _path(fault["loc"])
    return RequestError(f"{field}: {in_words(fault)}", field=field)


def _require_known(value: Mapping[str, Any], body: type[_Body], place: tuple[int | str, ...]) -> None:
    """Refuse the first field that nobody knows, mostly a misspelt one, before anything else is said of a body.

    pydantic would list all of them in one call, which a body full of them makes long, and all threads wait for it.
    """
    known = _known(body)
    for name, member in value.items():
        if name not in known:
            field = _path((*place, name))
            raise RequestError(f"{field}: {in_words({'type': 'extra_forbidden'})}", field=field)
        if name in body.inside and isinstance(member, dict):
            _require_known(member, body.inside[name], (*place, name))
        if name in body.listed and isinstance(member, list):
            for number, item in enumerate(member):
                if isinstance(item, dict):
                    _require_known(item, body.listed[name], (*place, name, number))


@cache
def _known(body: type[_Body]) -> frozenset[str]:
    """The fields of a body by their names on the wire."""
    return frozenset(field.alias or name for name, field in body.model_fields.items())


def _path(location: Sequence[int | str]) -> str:
    """`("devices", 1, "declared", "kind")` → `devices[1].kind`; which kind of device it was is no part of the path."""
    path = ""
    previous: int | str = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not (isinstance(previous, int) and step in ("by name", "declared")):
            shown = step.encode("unicode_escape").decode()[:_SHOWN]
            path += f".{shown}" if path else shown
        previous = step
    return path
