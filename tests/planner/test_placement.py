"""Layer mode: units, ratios, offloading and overrides, in numbers that users reported."""

from pathlib import Path

import pytest

from app.architectures.understanding import understand
from app.errors import PlanError, RequestError
from app.ggml import BY_NAME
from app.modelfile.reader import read_model_file
from app.planner.pipeline import plan_split
from app.planner.placement import Overrides, assign_units
from app.planner.plan import Override, PlanDevice, SplitMode, SplitPlan, SplitTargets
from tests.builders import t0, t0_moe
from tests.examples import example_file
from tests.oracle import HOST, gpu_devices, the_catalog


def _devices(*free: int) -> tuple[PlanDevice, ...]:
    return tuple(
        PlanDevice(name=f"D{index}", kind="gpu", memory_bytes=64 << 20, free_bytes=nbytes)
        for index, nbytes in enumerate(free)
    )


def _units(n_layer: int, n_devices: int, ratios: tuple[float, ...] | None = None, n_gpu_layers: int = -1) -> str:
    wanted = SplitTargets(
        mode=SplitMode.LAYER,
        devices=gpu_devices(n_devices),
        host=HOST,
        tensor_split=ratios,
        n_gpu_layers=n_gpu_layers,
    )
    return _letters(wanted, n_layer)


def _letters(wanted: SplitTargets, n_layer: int) -> str:
    units = assign_units(n_layer, wanted)
    return "".join("h" if name == "host" else str(name)[1:] for name in (*units.layers, units.output))


def _plan(path: Path, *overrides: tuple[str, str], n_devices: int = 2, **wanted: object) -> SplitPlan:
    asked = SplitTargets(
        mode=SplitMode.LAYER,
        devices=gpu_devices(n_devices),
        host=HOST,
        overrides=tuple(Override(pattern=pattern, device=device) for pattern, device in overrides),
        **wanted,  # type: ignore[arg-type]
    )
    return plan_split(understand(read_model_file(path), the_catalog()), asked)


def _bytes(plan: SplitPlan) -> dict[str, int]:
    return {total.name: total.weights_bytes for total in plan.totals}


@pytest.mark.parametrize(
    ("n_layer", "n_devices", "ratios", "expected"),
    [
        (4, 2, (3.0, 1.0), "00001"),
        (4, 2, (1.0, 1.0), "00011"),
        (4, 2, (0.0, 1.0), "11111"),
        (4, 2, (1.0, 0.0), "00000"),
        (6, 3, (1.0, 0.0, 1.0), "0000222"),
        (4, 2, (0.0, 0.0), "00011"),
        (4, 1, (7.0,), "00000"),
    ],
)
def test_ratios_spread_the_units(n_layer: int, n_devices: int, ratios: tuple[float, ...], expected: str) -> None:
    """Layers and the output go to devices by their place among the units; all zeros means by free memory."""
    assert expected == _units(n_layer, n_devices, ratios)


@pytest.mark.parametrize(
    ("n_gpu_layers", "one", "two"),
    [
        (-5, "00000", "00011"),
        (-1, "00000", "00011"),
        (0, "hhhhh", "hhhhh"),
        (1, "hhhh0", "hhhh0"),
        (2, "hhh00", "hhh01"),
        (3, "hh000", "hh001"),
        (4, "h0000", "h0011"),
        (5, "00000", "00011"),
        (99, "00000", "00011"),
    ],
)
def test_the_last_units_are_offloaded(n_gpu_layers: int, one: str, two: str) -> None:
    """N layers on devices are the last N units, the output among them; negative or too many means all."""
    assert one == _units(4, 1, None, n_gpu_layers)
    assert two == _units(4, 2, (1.0, 1.0), n_gpu_layers)


def test_without_ratios_free_memory_decides() -> None:
    """A full device gets no layer; where none has room, layers are spread evenly and the plan says so."""
    by_free = SplitTargets(mode=SplitMode.LAYER, devices=_devices(0, 10 << 20, 30 << 20), host=HOST)
    assert _letters(by_free, 6) == "1122222"
    full = SplitTargets(mode=SplitMode.LAYER, devices=_devices(0, 0), host=HOST)
    assert _letters(full, 4) == "00011"
    assert "no device has free memory" in assign_units(4, full).warnings[0]


def test_none_mode_uses_the_main_device() -> None:
    """Without a split every unit lives on the main device."""
    wanted = SplitTargets(mode=SplitMode.NONE, devices=gpu_devices(3), host=HOST, main_device=2)
    assert _letters(wanted, 4) == "22222"


def test_bytes_of_an_even_split(tmp_path: Path) -> None:
    """Every byte of the file is on one device, the embedding on the host, the output after the last layer."""
    plan = _plan(t0(tmp_path / "m.gguf", 4), tensor_split=(1.0, 1.0))
    assert {"D0": 443904, "D1": 156416, "host": 8192} == _bytes(plan)


def test_rotary_table_is_on_each_device_with_layers(tmp_path: Path) -> None:
    """The rotary frequencies are one tensor used by all layers: a copy lives on each device that holds some."""
    path = t0(tmp_path / "m.gguf", 4, add=[("rope_freqs.weight", BY_NAME["f32"], (8,))])
    assert {"D0": 443936, "D1": 156448, "host": 8192} == _bytes(_plan(path, tensor_split=(1.0, 1.0)))


@pytest.mark.parametrize(("n_gpu_layers", "expected"), [(0, {"host": 600320}), (-1, {"D0": 600320, "host": 8192})])
def test_tied_output_is_copied_only_to_another_device(
    tmp_path: Path, n_gpu_layers: int, expected: dict[str, int]
) -> None:
    """With everything on the host a tied output is no second copy; on a device it is one more embedding."""
    path = t0(tmp_path / "m.gguf", 4, drop={"output.weight"})
    plan = _plan(path, n_devices=1, n_gpu_layers=n_gpu_layers)
    assert expected == {name: nbytes for name, nbytes in _bytes(plan).items() if nbytes}


def test_overrides_are_searched_anywhere_and_the_first_wins(tmp_path: Path) -> None:
    """A pattern matches anywhere in the name, and the first of two that match decides."""
    path = t0(tmp_path / "m.gguf", 12)
    moved = [tensor for tensor in _plan(path, ("blk.1", "host")).tensors if tensor.device == "host"][1:]
    assert (27, 443904) == (len(moved), sum(tensor.nbytes for tensor in moved))
    exact = [tensor for tensor in _plan(path, (r"blk\.1\.", "host")).tensors if tensor.device == "host"][1:]
    assert (9, 147968) == (len(exact), sum(tensor.nbytes for tensor in exact))
    both = {tensor.name: tensor.device for tensor in _plan(path, ("ffn", "host"), (r"blk\.3\.", "D1")).tensors}
    assert ("host", "D1") == (both["blk.3.ffn_up.weight"], both["blk.3.attn_q.weight"])


def test_experts_can_stay_on_the_host(tmp_path: Path) -> None:
    """Layers are counted, not bytes: experts moved to the host leave their device with less."""
    plan = _plan(
        t0_moe(tmp_path / "m.gguf", 4),
        (r"blk\.(0|1)\.ffn_(up|down|gate|gate_up)_(ch|)exps", "host"),
        tensor_split=(1.0, 1.0),
    )
    assert {"D0": 545280, "D1": 452352, "host": 794624} == _bytes(plan)


def test_an_override_that_matches_nothing_is_a_warning(tmp_path: Path) -> None:
    """A pattern without a match changes nothing and is told."""
    plan = _plan(t0(tmp_path / "m.gguf"), ("nothing_like_this", "host"))
    assert ("override 'nothing_like_this' decided no tensor's device",) == plan.warnings


def test_a_broken_pattern_is_the_requests_fault(tmp_path: Path) -> None:
    """A pattern that is no RE2 expression is refused, and the refusal says what is wrong with it."""
    with pytest.raises(RequestError, match="missing"):
        _plan(t0(tmp_path / "m.gguf"), ("(", "host"))


def test_patterns_cannot_hang(tmp_path: Path) -> None:
    """A pattern made to backtrack for ever costs linear time."""
    path = t0(tmp_path / "m.gguf", add=[], seed=None)
    assert _plan(path, ("(.*a){30}b", "host")).warnings


def test_row_mode_is_refused_with_its_reason(tmp_path: Path) -> None:
    """Row mode needs split buffers, which no device has: refused, naming the capability."""
    asked = SplitTargets(mode=SplitMode.ROW, devices=gpu_devices(2), host=HOST)
    with pytest.raises(PlanError) as refused:
        plan_split(understand(read_model_file(t0(tmp_path / "m.gguf")), the_catalog()), asked)
    assert ("unsupported_split", "split_buffer") == (refused.value.code, refused.value.facts["capability"])


def test_a_tensor_is_spread_over_at_most_sixteen_devices(tmp_path: Path) -> None:
    """Tensor mode over more devices than the reference can join is refused with both numbers."""
    asked = SplitTargets(mode=SplitMode.TENSOR, devices=gpu_devices(17), host=HOST)
    with pytest.raises(PlanError) as refused:
        plan_split(understand(read_model_file(t0(tmp_path / "m.gguf")), the_catalog()), asked)
    assert (16, 17) == (refused.value.facts["expected"], refused.value.facts["found"])


@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])
def test_one_place_holds_one_copy_whichever_use_comes_first(tmp_path: Path, name: str) -> None:
    """Where the output's use of the embedding is told before the input's, both on the host are one tensor still."""
    path = example_file(the_catalog().get(name), tmp_path / "m.gguf")
    plan = _plan(path, n_devices=1, n_gpu_layers=0)
    assert ["host"] == [tensor.device for tensor in plan.tensors if tensor.name == "token_embd.weight"]
    moved = _plan(path, ("token_embd", "D0"), n_devices=1)
    assert ["D0"] == [tensor.device for tensor in moved.tensors if tensor.name == "token_embd.weight"]


def test_many_overrides_that_decide_nothing_are_counted() -> None:
    """However many and however long they are, what is said of them is short."""
    patterns = [f"nothing{'x' * 1000}{number}" for number in range(100)]
    warnings = Overrides([Override(pattern=pattern, device="host") for pattern in patterns]).warnings()
    assert "nor did 84 other overrides" == warnings[-1]
    assert sum(map(len, warnings)) < 8000
