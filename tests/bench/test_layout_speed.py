import gc
import time
from statistics import median

import pytest

from app.loading.layout import lay_out
from app.modelfile.types import TensorInfo
from tests.loading.plans import TYPES, decide, plan_device, plan_of, planned
from tests.loading.test_layout import facts_of

N_DEVICES = 8


@pytest.mark.bench
def test_layout_takes_time_in_proportion_to_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    """1,138 tensors on 8 devices are laid out in tens of milliseconds, four times as many in about four times that."""
    prepared = {}
    for count in (1138, 4 * 1138):
        tensors = []
        for n in range(count):
            origin = TensorInfo(
                name=f"t{n}", type=TYPES[0], shape=(1024, 1024), shard=0, offset=n << 22, nbytes=1 << 22
            )
            tensors.append(
                planned(
                    origin.name,
                    origin.shape,
                    axis=0 if n % 2 else 1,
                    segments=[((128,) * N_DEVICES, 1)],
                    devices=N_DEVICES,
                    source=origin,
                )
            )
        plan = plan_of(tensors, [plan_device(f"d{n}") for n in range(N_DEVICES)])
        prepared[count] = plan, decide(plan, facts_of(plan)), facts_of(plan)
    seconds: dict[int, list[float]] = {count: [] for count in prepared}
    for _ in range(7):
        for count, (plan, decision, facts) in prepared.items():
            gc.collect()
            begin = time.perf_counter()
            lay_out(plan, decision, facts)
            seconds[count].append(time.perf_counter() - begin)
    small, large = (median(times) for times in seconds.values())
    with capsys.disabled():
        print(f"\nlayout on {N_DEVICES} devices: {small * 1e3:.1f} ms for 1,138 tensors, {large / small:.2f}x for 4x")
    assert small < 0.1
    assert large < 8 * small  # linear, and the garbage collector's share of that many more objects
