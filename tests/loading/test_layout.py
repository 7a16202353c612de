from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.devices.facts import Capabilities, DeviceFacts
from app.errors import CapacityError
from app.loading.layout import Layout, lay_out, mappable_bytes, whole_on
from app.loading.negotiation import LoadMode
from app.modelfile.types import TensorInfo
from app.planner.plan import PlannedTensor, SplitPlan
from tests.loading.plans import TYPES, Example, decide, examples, plan_device, plan_of, planned

F32 = TYPES[0]
HUGE = 1 << 40


def facts_of(
    plan: SplitPlan, *, free: Mapping[str, int] | None = None, alignment: int = 32, largest: int = HUGE
) -> dict[str, DeviceFacts]:
    return {
        total.name: DeviceFacts(
            name=total.name,
            kind="host" if total.name == "host" else "simulated",
            description="",
            memory_bytes=HUGE,
            free_bytes=(free or {}).get(total.name, HUGE),
            allocated_bytes=0,
            alignment_bytes=alignment,
            max_allocation_bytes=largest,
            capabilities=Capabilities(),
        )
        for total in plan.totals
    }


def source(name: str, offset: int, nbytes: int, shard: int = 0) -> TensorInfo:
    return TensorInfo(name=name, type=F32, shape=(nbytes // 4,), shard=shard, offset=offset, nbytes=nbytes)


def vector(name: str, offset: int, nbytes: int, device: str, shard: int = 0) -> PlannedTensor:
    """A whole tensor of `nbytes` at `offset` of a shard, on one device."""
    return planned(name, (nbytes // 4,), device=device, devices=1, source=source(name, offset, nbytes, shard))


def lay(plan: SplitPlan, facts: Mapping[str, DeviceFacts], mode: LoadMode = LoadMode.NONE) -> Layout:
    return lay_out(plan, decide(plan, facts, mode), facts)


@given(
    example=examples(),
    alignment=st.sampled_from((1, 32, 256)),
    largest=st.sampled_from((4 * 4096 * 16, HUGE)),
    mapped=st.booleans(),
)
def test_every_byte_has_one_place(example: Example, alignment: int, largest: int, mapped: bool) -> None:
    """Placements are aligned, disjoint and inside their buffers; sums agree with the plan; nothing is empty."""
    plan = example.plan
    facts = facts_of(plan, alignment=alignment, largest=largest)
    layout = lay(plan, facts, LoadMode.AUTO if mapped else LoadMode.NONE)
    buffers = {spec.id: spec for spec in layout.buffers}
    assert list(range(len(layout.buffers))) == [spec.id for spec in layout.buffers]
    ends = dict.fromkeys(buffers, 0)
    accounted = dict.fromkeys(buffers, 0)
    for placement in sorted(layout.placements, key=lambda it: (it.buffer, it.offset)):
        spec = buffers[placement.buffer]
        assert placement.device == spec.device
        assert placement.nbytes > 0
        if spec.mapped is None:
            assert placement.offset % alignment == 0
            assert placement.offset >= ends[placement.buffer]
        else:
            origin = plan.tensors[placement.tensor].source
            assert origin is not None
            assert (spec.mapped.shard, spec.mapped.offset + placement.offset) == (origin.shard, origin.offset)
        ends[placement.buffer] = max(ends[placement.buffer], placement.offset + placement.nbytes)
        accounted[placement.buffer] += placement.nbytes
    assert ends == {spec.id: spec.nbytes for spec in layout.buffers}
    assert accounted == {spec.id: spec.accounted_bytes for spec in layout.buffers}
    assert all(spec.nbytes <= largest for spec in layout.buffers)
    for total in plan.totals:
        assert total.total_bytes == sum(it.nbytes for it in layout.placements if it.device == total.name)
    assert layout.total_bytes == sum(total.total_bytes for total in plan.totals)
    assert layout.copy_bytes + layout.mapped_bytes == layout.total_bytes
    targets = [it for step in layout.steps for it in step.targets if it is not None]
    copied = [it for it in layout.placements if buffers[it.buffer].mapped is None]
    assert sorted(targets, key=repr) == sorted(copied, key=repr)
    assert sorted((step.shard, step.offset) for step in layout.steps) == [(it.shard, it.offset) for it in layout.steps]


@given(example=examples(max_tensors=3))
def test_exactly_what_the_plan_says_is_enough(example: Example) -> None:
    """Free memory of exactly the plan's bytes is enough; one byte less on any device is refused, naming each."""
    plan = example.plan
    enough = {total.name: total.total_bytes for total in plan.totals}
    assert lay(plan, facts_of(plan, free=enough)).total_bytes == sum(enough.values())
    short = {name: max(0, nbytes - 1) for name, nbytes in enough.items()}
    with pytest.raises(CapacityError) as caught:
        lay(plan, facts_of(plan, free=short))
    expected = [(name, nbytes, nbytes - 1) for name, nbytes in enough.items() if nbytes]
    found = caught.value.facts["devices"]
    assert isinstance(found, list)
    rows = [tuple(it[key] for key in ("device", "needed_bytes", "free_bytes")) for it in found if isinstance(it, dict)]
    assert sorted(expected) == sorted(rows)


def test_buffers_are_cut_where_the_device_says() -> None:
    """A device whose largest buffer is too small for all gets several; a slice that fits none is refused by name."""
    devices = [plan_device("d0")]
    plan = plan_of([vector(f"t{n}", 1000 * n, 1000, "d0") for n in range(4)], devices)
    layout = lay(plan, facts_of(plan, largest=2100))
    assert [2024, 2024] == [spec.nbytes for spec in layout.buffers]
    assert [2000, 2000] == [spec.accounted_bytes for spec in layout.buffers]
    with pytest.raises(CapacityError, match="t0 has 1000 B on d0, whose largest buffer is 999 B") as caught:
        lay(plan, facts_of(plan, largest=999))
    assert ("t0", "d0", 1000, 999) == tuple(
        caught.value.facts[key] for key in ("tensor", "device", "needed_bytes", "max_allocation_bytes")
    )


def test_mapped_ranges_cover_the_whole_tensors_of_each_shard() -> None:
    """Under mmap a device maps, per shard, from its first whole tensor to its last, and accounts only its own."""
    tensors = [
        vector("a", 64, 400, "host"),
        vector("b", 480, 400, "d0"),
        vector("c", 960, 400, "host"),
        vector("d", 32, 800, "host", shard=1),
    ]
    plan = plan_of(tensors, [plan_device("d0")], host=plan_device("host", kind="host"))
    layout = lay(plan, facts_of(plan), LoadMode.MMAP)
    ranges = [
        (it.device, it.mapped.shard, it.mapped.offset, it.mapped.nbytes, it.accounted_bytes)
        for it in layout.buffers
        if it.mapped is not None
    ]
    assert [("host", 0, 64, 1296, 800), ("d0", 0, 480, 400, 400), ("host", 1, 32, 800, 800)] == ranges
    assert ((), 0, 2000) == (layout.steps, layout.copy_bytes, layout.mapped_bytes)
    cut = lay(plan, facts_of(plan, largest=1000), LoadMode.MMAP)
    assert [400, 400, 400, 800] == sorted(spec.nbytes for spec in cut.buffers)


def test_slices_and_mirrored_copies_are_read_beside_a_mapping() -> None:
    """Under mmap only tensors that stay whole on one device are the mapping; every slice and copy gets memory."""
    devices = [plan_device("d0"), plan_device("d1")]
    tensors = [
        planned("norm", (100,), axis="mirrored", devices=2, source=source("norm", 0, 400)),
        planned("q", (10, 10), axis=1, segments=[((4, 6), 1)], devices=2, source=source("q", 400, 400)),
        planned("k", (10, 10), axis=1, segments=[((0, 10), 1)], devices=2, source=source("k", 800, 400)),
        vector("embd", 1200, 400, "host"),
    ]
    tensors[3] = planned("embd", (100,), device="host", devices=2, source=source("embd", 1200, 400))
    plan = plan_of(tensors, devices, host=plan_device("host", kind="host"))
    assert [None, None, "d1", "host"] == [whole_on(plan, tensor) for tensor in tensors]
    assert {"d1": 400, "host": 400} == mappable_bytes(plan)
    layout = lay(plan, facts_of(plan), LoadMode.MMAP)
    assert (800, 1200, 800) == (layout.mapped_bytes, layout.copy_bytes, layout.read_bytes)


def test_a_tensor_placed_twice_is_read_once() -> None:
    """A tied embedding on the host and mirrored on two devices is three placements of one read."""
    origin = source("token_embd.weight", 0, 400)
    tensors = [
        planned("token_embd.weight", (100,), device="host", devices=2, source=origin),
        planned("token_embd.weight", (100,), axis="mirrored", devices=2, source=origin),
    ]
    plan = plan_of(tensors, [plan_device("d0"), plan_device("d1")], host=plan_device("host", kind="host"))
    layout = lay(plan, facts_of(plan))
    assert (1, 400, 1200, 1200) == (len(layout.steps), layout.read_bytes, layout.copy_bytes, layout.total_bytes)
    assert ["host", "d0", "d1"] == [it.device for it in layout.steps[0].targets if it is not None]


def test_caches_have_buffers_of_their_own_and_no_copy() -> None:
    """Caches are allocated with the weights, in other buffers, and nothing is copied into them."""
    cache = planned("cache_k_l0", (64, 32), axis=0, segments=[((32, 32), 1)], devices=2)
    weight = planned("w", (100,), axis="mirrored", devices=2, source=source("w", 0, 400))
    plan = plan_of([weight], [plan_device("d0"), plan_device("d1")], caches=[cache])
    layout = lay(plan, facts_of(plan))
    assert [("d0", 400), ("d1", 400), ("d0", 4096), ("d1", 4096)] == [(it.device, it.nbytes) for it in layout.buffers]
    assert (1, 800, 800 + 8192) == (len(layout.steps), layout.copy_bytes, layout.total_bytes)
    assert [0, 0, 1, 1] == [it.tensor for it in layout.placements]


def test_steps_do_not_multiply() -> None:
    """A stack of 256 experts cut on 8 devices is one step, however many pieces its cut has."""
    stack = planned(
        "exps",
        (64, 64, 256),
        axis=1,
        segments=[((8,) * 8, 1)],
        devices=8,
        source=source("exps", 0, 64 * 64 * 256 * 4),
    )
    plan = plan_of([stack], [plan_device(f"d{n}") for n in range(8)])
    layout = lay(plan, facts_of(plan))
    assert (1, 8, 1, 256) == (
        len(layout.steps),
        len(layout.placements),
        len(layout.steps[0].cut.segments),
        layout.steps[0].cut.rows,
    )
