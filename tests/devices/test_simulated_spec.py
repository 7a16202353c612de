from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.devices import simulated_spec
from app.devices.facts import Capabilities
from app.devices.simulated import SimulatedFailures
from app.devices.simulated_spec import OPTIONS, SimulatedSpec
from app.errors import RequestError
from app.units import GIB, MIB


def test_a_line_says_everything() -> None:
    """Every option of the line ends in its field."""
    spec = SimulatedSpec.parse(
        "sim0:8GiB, free=6GiB,alignment=256,max_allocation=1GiB,keep_bytes,no-async,no-mmap_support,"
        "fail_allocation=2,fail_write=3,fail_after=1MiB,fail_import,refuse_import,bandwidth=500MiB"
    )
    assert (
        SimulatedSpec(
            name="sim0",
            memory_bytes=8 * GIB,
            free_bytes=6 * GIB,
            alignment_bytes=256,
            max_allocation_bytes=GIB,
            keep_bytes=True,
            capabilities=Capabilities(asynchronous=False, mmap_support=False),
            failures=SimulatedFailures(
                fail_allocation=2,
                fail_write=3,
                fail_after_bytes=MIB,
                fail_import=True,
                refuse_import=True,
                bytes_per_second=500 * MIB,
            ),
        )
        == spec
    )


def test_a_name_and_a_size_are_enough() -> None:
    """`sim0:4096` is a device with every capability, nothing kept and nothing failing."""
    assert SimulatedSpec(name="sim0", memory_bytes=4096) == SimulatedSpec.parse("sim0:4096")
    facts = SimulatedSpec.parse("sim0:4096,free=1KiB").build().facts()
    assert ("sim0", "simulated", 4096, 1024, 4096, Capabilities()) == (
        facts.name,
        facts.kind,
        facts.memory_bytes,
        facts.free_bytes,
        facts.max_allocation_bytes,
        facts.capabilities,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sim0",
        ":8GiB",
        "si m:8GiB",
        "sim0:",
        "sim0:much",
        "sim0:-1",
        "sim0:8GiB,",
        "sim0:8GiB,keep_bytes=1",
        "sim0:8GiB,fail_allocation",
        "sim0:8GiB,fail_allocation=0",
        "sim0:8GiB,fail_allocation=two",
        "sim0:8GiB,alignment=3",
        "sim0:8GiB,bandwidth=0",
        "sim0:8GiB,max_allocation=0",
        "sim0:8GiB,free=9GiB",
        "sim0:8GiB,no-split_buffer",
        "sim0:8GiB,events",
        "sim0:8GiB,keep_bytes,keep_bytes",
        "sim0:8GiB,alignment=٣٢",
    ],
)
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    """A line with a fault is a RequestError that quotes it and names the setting."""
    with pytest.raises(RequestError) as caught:
        SimulatedSpec.parse(text)
    assert ("bad_request", "simulated_devices") == (caught.value.code, caught.value.facts["field"])
    assert repr(text) in caught.value.message


@given(text=st.text(alphabet="sim0:,=-_GiBfailkeepbytesno1٣ ", max_size=40))
def test_no_line_raises_anything_else(text: str) -> None:
    """Whatever the text, the outcome is a spec or a typed error."""
    with suppress(RequestError):
        assert SimulatedSpec.parse(text).name


def test_every_option_is_explained() -> None:
    """The module's text, which people are pointed at, names every option there is."""
    for option in OPTIONS:
        assert option in (simulated_spec.__doc__ or "")
