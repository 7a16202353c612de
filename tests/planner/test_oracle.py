"""Where the reference puts and cuts every tensor of every recorded model."""

from collections import defaultdict
from pathlib import Path

import pytest

from app.errors import PlanError
from app.planner.pipeline import plan_split
from app.planner.placement import assign_units
from app.planner.plan import PlannedTensor, SplitMode
from tests.oracle import (
    GROUPS,
    Models,
    is_cache,
    on_host,
    recorded_state,
    records,
    state,
    targets,
    the_catalog,
)


@pytest.fixture(scope="module")
def models(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(oracle_dir, tmp_path_factory.mktemp("models"))


def _architectures(oracle: Path, group: str) -> dict[str, str]:
    return {record["file"]: record["arch"] for record in records(oracle, f"facts/{group}")}


@pytest.mark.parametrize("group", GROUPS)
def test_every_weight_is_cut_where_the_reference_cuts_it(oracle_dir: Path, models: Models, group: str) -> None:
    """Axis, runs and shares of every weight agree; what cannot be split is refused, naming what or why."""
    architectures = _architectures(oracle_dir, group)
    compared = 0
    for record in records(oracle_dir, f"split/{group}"):
        if architectures[record["file"]] not in the_catalog():
            continue
        understanding = models(group, record["file"])
        split = targets(SplitMode.TENSOR, record["n_devices"], record["tensor_split"])
        weights = {name: answer for name, answer in record["states"].items() if not is_cache(name)}
        aborts = {name for name, answer in weights.items() if answer == "abort"}
        if aborts or not understanding.architecture.capabilities.tensor_split:
            with pytest.raises(PlanError) as refused:
                plan_split(understanding, split)
            assert refused.value.code == "unsupported_split"
            facts = refused.value.facts
            assert facts.get("tensor") in aborts or facts.get("capability") == "tensor_split"
            continue
        planned: dict[str, list[PlannedTensor]] = defaultdict(list)
        for tensor in plan_split(understanding, split).tensors:
            planned[tensor.name].append(tensor)
        for name, answer in weights.items():
            tensor = planned[name][-1]
            # asked about what stays on the host the reference says mirrored; the plan says where it is
            expected = recorded_state(answer) if tensor.device is None else ["mirrored", []]
            found = state(tensor) if tensor.device is None else [recorded_state(answer)[0], []]
            assert (record["file"], record["n_devices"], name, expected) == (
                record["file"],
                record["n_devices"],
                name,
                found,
            )
            compared += 1
    assert compared > 0


def test_every_layer_and_tensor_lives_where_the_reference_puts_it(oracle_dir: Path, models: Models) -> None:
    """In layer mode the device of every layer and of every tensor agrees, overrides and ratios included."""
    architectures = _architectures(oracle_dir, "real")
    for record in records(oracle_dir, "place/real"):
        if architectures[record["file"]] not in the_catalog():
            continue
        understanding = models("real", record["file"])
        wanted = targets(
            SplitMode.LAYER,
            record["n_devices"],
            record["tensor_split"],
            record["n_gpu_layers"],
            record["overrides"],
        )
        units = assign_units(understanding.hparams.n_layer_all, wanted)
        assert [on_host(device) for device in record["layers"]] == list(units.layers), record["file"]
        last = {tensor.name: tensor.device for tensor in plan_split(understanding, wanted).tensors}
        assert {name: on_host(device) for name, device in record["tensors"].items()} == last, record["file"]
