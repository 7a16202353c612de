import math
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import GgufdError, PlanError, RequestError
from app.loading.negotiation import LoadMode
from app.loading.request import (
    MAX_LISTED_DEVICES,
    DeclaredDevice,
    PlanRequest,
    check_request,
    selected_names,
)
from app.planner.plan import Override, SplitMode

KNOWN = ("host", "host0", "host1")
MIB = 1 << 20


def request(**changes: Any) -> PlanRequest:
    return replace(PlanRequest(model="m.gguf"), **changes)


def fleet(count: int) -> tuple[DeclaredDevice, ...]:
    return tuple(DeclaredDevice(name=f"d{n}", kind="simulated", memory_bytes=MIB) for n in range(count))


def refused(wish: PlanRequest, kind: type[GgufdError] = RequestError) -> GgufdError:
    with pytest.raises(kind) as caught:
        check_request(wish, KNOWN)
    return caught.value


def test_the_defaults_are_a_good_request() -> None:
    """A model alone is enough to ask for."""
    check_request(request(), KNOWN)


@pytest.mark.parametrize(
    "ratios",
    [(1.0, -1.0), (-1.0, 2.0), (math.nan, 1.0), (math.inf, 1.0), (3e38, 3e38), (1e39, 1.0)],
    ids=["cancel", "negative", "nan", "inf", "sum overflows", "no float32"],
)
def test_c31_ratios_that_cannot_be_shares_are_refused(ratios: tuple[float, ...]) -> None:
    """Negative, non-finite and overflowing ratios are the request's fault, found before the file is opened."""
    assert refused(request(tensor_split=ratios)).facts["field"] == "tensor_split"


@pytest.mark.parametrize("ratios", [(), (0.0, 0.0), (1.0,), (1.0, 0.0), (3.0, 1.0, 0.0, 0.0), (1e-50, 1e-50)])
def test_c30_short_zero_and_zero_tailed_ratios_are_fine(ratios: tuple[float, ...]) -> None:
    """Missing values are zeros, all zeros mean none, and a tail of zeros beyond the devices says nothing."""
    check_request(request(tensor_split=ratios), KNOWN)


def test_c30_a_share_for_a_device_that_is_not_there_is_refused() -> None:
    """Two devices and a third share that isn't zero: the client meant something else."""
    assert "tensor_split[2]" in refused(request(tensor_split=(1.0, 1.0, 1.0))).message


@pytest.mark.parametrize("layers", [-(2**31), -5, -1, 0, 99, 2**31 - 1])
def test_c32_any_32_bit_layer_count_is_a_count(layers: int) -> None:
    """Negative means all and more than there are means all; neither is refused."""
    check_request(request(n_gpu_layers=layers), KNOWN)


@pytest.mark.parametrize("layers", [2**31, 2**40, -(2**31) - 1, 10**10_000], ids=["2^31", "2^40", "-2^31-1", "huge"])
def test_c32_a_layer_count_beyond_32_bits_is_refused(layers: int) -> None:
    """2^40 layers are a mistake, and even a number Python won't write is answered."""
    assert refused(request(n_gpu_layers=layers)).facts["field"] == "n_gpu_layers"


def test_c39_row_mode_is_refused_for_want_of_split_buffers() -> None:
    """The refusal names the capability that no device has."""
    error = refused(request(split_mode=SplitMode.ROW), PlanError)

    assert error.code == "unsupported_split"
    assert error.facts["capability"] == "split_buffer"


def test_c39_seventeen_devices_cannot_share_tensors() -> None:
    """Tensor mode takes at most 16 devices; layer mode takes them."""
    many = fleet(17)

    assert refused(request(split_mode=SplitMode.TENSOR, devices=many), PlanError).code == "unsupported_split"
    check_request(request(split_mode=SplitMode.LAYER, devices=many), KNOWN)
    check_request(request(split_mode=SplitMode.TENSOR, devices=many[:16]), KNOWN)


def test_c39_no_devices_at_all_are_refused() -> None:
    """An empty list is not the same as no list."""
    assert refused(request(devices=())).facts["field"] == "devices"


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    """The client can choose from what the refusal lists."""
    error = refused(request(devices=("host0", "gpu7")))

    assert error.facts["field"] == "devices[1]"
    assert error.facts["devices"] == list(KNOWN)
    assert "host0, host1" in error.message


@pytest.mark.parametrize(
    "devices",
    [("host0", "host0"), ("host0", fleet(1)[0], fleet(1)[0]), ("d0", *fleet(1))],
    ids=["known", "declared", "both"],
)
def test_a_device_listed_twice_is_refused(devices: tuple[str | DeclaredDevice, ...]) -> None:
    """One name means one device."""
    with pytest.raises(RequestError, match="listed twice"):
        check_request(request(devices=devices), (*KNOWN, "d0"))


def test_more_devices_than_any_fleet_are_refused() -> None:
    """The list is bounded."""
    assert refused(request(devices=fleet(MAX_LISTED_DEVICES + 1))).facts["field"] == "devices"


@pytest.mark.parametrize(
    ("declared", "field"),
    [
        (DeclaredDevice(name="", kind="simulated", memory_bytes=1), "devices[0].name"),
        (DeclaredDevice(name="a\nb", kind="simulated", memory_bytes=1), "devices[0].name"),
        (DeclaredDevice(name="a" * 129, kind="simulated", memory_bytes=1), "devices[0].name"),
        (DeclaredDevice(name="a", kind="", memory_bytes=1), "devices[0].kind"),
        (DeclaredDevice(name="host", kind="simulated", memory_bytes=1), "devices[0].kind"),
        (DeclaredDevice(name="a", kind="simulated", memory_bytes=-1), "devices[0].memory_bytes"),
        (DeclaredDevice(name="a", kind="simulated", memory_bytes=2**63), "devices[0].memory_bytes"),
        (DeclaredDevice(name="a", kind="simulated", memory_bytes=5, free_bytes=6), "devices[0].free_bytes"),
        (DeclaredDevice(name="a", kind="simulated", memory_bytes=5, free_bytes=-1), "devices[0].free_bytes"),
    ],
)
def test_a_declared_device_that_cannot_be_is_refused(declared: DeclaredDevice, field: str) -> None:
    """The refusal names the field of the declaration."""
    assert refused(request(devices=(declared,))).facts["field"] == field


def test_a_main_device_must_be_among_the_chosen() -> None:
    """host1 is known, but this request does not use it."""
    error = refused(request(devices=("host0",), main_device="host1"))

    assert error.facts["field"] == "main_device"
    assert error.facts["devices"] == ["host0"]


@pytest.mark.parametrize(
    ("pattern", "position"),
    [("(", 0), ("ab(c", 2), (r"\(x(", 3), ("blk[z-a]", 4), ("a**", 1), ("*a", 0), ("((a)", 0), ("é(", 1)],
)
def test_c40_a_pattern_that_does_not_compile_is_refused_with_its_place(pattern: str, position: int) -> None:
    """The refusal says where in which pattern."""
    error = refused(
        request(overrides=(Override(pattern="ok", device="host"), Override(pattern=pattern, device="host")))
    )

    assert error.facts["field"] == "overrides[1].pattern"
    assert error.facts["position"] == position


def test_c40_an_override_to_an_unknown_device_lists_the_possible_ones() -> None:
    """Overrides go to the chosen devices or the host."""
    error = refused(request(devices=("host0",), overrides=(Override(pattern="a", device="host1"),)))

    assert error.facts["field"] == "overrides[0].device"
    assert error.facts["devices"] == ["host0", "host"]


def test_c40_no_pattern_can_hang_the_check() -> None:
    """A pattern made to backtrack for ever is compiled and searched in no time."""
    started = time.monotonic()
    check_request(request(overrides=(Override(pattern="(.*a){30}b", device="host"),)), KNOWN)

    assert time.monotonic() - started < 1


@pytest.mark.parametrize("model", ["", "a\0b", "https://example.org/m.gguf", "\ud800.gguf"])
def test_a_model_that_is_no_path_is_refused(model: str) -> None:
    """Empty, with a zero byte, a URL, or not encodable: none of them names a file."""
    assert refused(request(model=model)).facts["field"] == "model"


def test_the_devices_default_to_all_but_the_host() -> None:
    """Without a list everything but the host is used, and the host where there is nothing else."""
    assert selected_names(None, KNOWN) == ("host0", "host1")
    assert selected_names(None, ("host",)) == ("host",)


def test_a_declared_host_gets_layers_only_where_it_is_alone() -> None:
    """Beside other devices it only tells the host's memory; alone it is the device. A listed host is a device."""
    host = DeclaredDevice(name="host", kind="host", memory_bytes=MIB)

    assert selected_names((host, *fleet(2)), KNOWN) == ("d0", "d1")
    assert selected_names((host,), KNOWN) == ("host",)
    assert selected_names(("host", "host0"), KNOWN) == ("host", "host0")


def test_equal_wishes_have_equal_fingerprints_and_others_have_others() -> None:
    """The fingerprint follows the values, default or written out, and nothing but them."""
    declared = DeclaredDevice(name="a", kind="simulated", memory_bytes=5)
    written = replace(declared, free_bytes=5)

    assert request(n_gpu_layers=-7).fingerprint() == request().fingerprint()
    assert request(devices=(declared,)).fingerprint() == request(devices=(written,)).fingerprint()
    others = [
        request(model="n.gguf"),
        request(split_mode=SplitMode.TENSOR),
        request(devices=("host0",)),
        request(tensor_split=(1.0,)),
        request(main_device="host0"),
        request(n_gpu_layers=0),
        request(overrides=(Override(pattern="a", device="host"),)),
        request(load_mode=LoadMode.NONE),
    ]
    assert len({one.fingerprint() for one in (request(), *others)}) == len(others) + 1


@given(
    ratios=st.none() | st.lists(st.floats(), max_size=6).map(tuple),
    layers=st.integers(),
    devices=st.none() | st.lists(st.sampled_from([*KNOWN, "x"]), max_size=4).map(tuple),
    pattern=st.text(max_size=12),
    model=st.text(max_size=12),
    mode=st.sampled_from(SplitMode),
)
def test_no_request_ends_in_anything_but_acceptance_or_a_typed_refusal(
    ratios: tuple[float, ...] | None,
    layers: int,
    devices: tuple[str, ...] | None,
    pattern: str,
    model: str,
    mode: SplitMode,
) -> None:
    """Whatever the values are, the check answers with nothing or with an error of ours."""
    wish = PlanRequest(
        model=model,
        split_mode=mode,
        devices=devices,
        tensor_split=ratios,
        n_gpu_layers=layers,
        overrides=(Override(pattern=pattern, device="host"),),
    )
    refusal: GgufdError | None = None
    try:
        check_request(wish, KNOWN)
    except GgufdError as error:
        refusal = error

    assert refusal is None or refusal.facts["field"]
