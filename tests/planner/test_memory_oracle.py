"""Where the reference puts and cuts every cache of every recorded model."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.architectures.memory import MemoryRequest
from app.architectures.understanding import Understanding
from app.errors import PlanError
from app.planner.classification import classify, peers_by_layer
from app.planner.pipeline import Splitter, plan_split
from app.planner.plan import Classified, PlannedTensor, SplitMode, SplitTargets
from tests.oracle import GROUPS, Models, is_cache, on_host, recorded_state, records, state, targets, the_catalog

CONTEXT = MemoryRequest(n_ctx=4096)


@pytest.fixture(scope="module")
def models(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(oracle_dir, tmp_path_factory.mktemp("models"))


def _known(oracle: Path, group: str) -> set[str]:
    facts = records(oracle, f"facts/{group}")
    return {record["file"] for record in facts if record["arch"] in the_catalog() and record["context"]}


def _asked(record: dict[str, Any]) -> SplitTargets:
    return replace(targets(SplitMode.TENSOR, record["n_devices"], record["tensor_split"]), context=CONTEXT)


@pytest.mark.parametrize("group", GROUPS)
def test_every_cache_is_cut_where_the_reference_cuts_it(oracle_dir: Path, models: Models, group: str) -> None:
    """Axis, runs and shares of every cache of every model that may be split agree."""
    compared = 0
    known = _known(oracle_dir, group)
    for record in records(oracle_dir, f"split/{group}"):
        states: dict[str, Any] = record["states"]
        understanding = models(group, record["file"]) if record["file"] in known else None
        if understanding is None or "abort" in states.values():
            continue
        if understanding.architecture.capabilities.tensor_split:
            compared += _compare(record, plan_split(understanding, _asked(record)).caches)
        else:
            compared += _compare(record, _past_the_gate(understanding, _asked(record)))
    assert compared > 0


def _compare(record: dict[str, Any], caches: tuple[PlannedTensor, ...]) -> int:
    planned: dict[str, PlannedTensor] = {cache.name: cache for cache in caches}
    expected = {name: recorded_state(answer) for name, answer in record["states"].items() if is_cache(name)}
    assert (record["file"], expected) == (record["file"], {name: state(cache) for name, cache in planned.items()})
    return len(planned)


def _past_the_gate(understanding: Understanding, asked: SplitTargets) -> tuple[PlannedTensor, ...]:
    """The stages alone, for models that are refused before their caches are asked about."""
    splitter = Splitter(understanding, asked, peers_by_layer(classify(understanding.comparison)))
    caches = understanding.architecture.caches(understanding.hparams, CONTEXT)
    return tuple(splitter.split(Classified(tensor=cache, role=cache.role, layer=cache.layer)) for cache in caches)


@pytest.mark.parametrize("group", ["toy", "toy_q"])
def test_a_cache_that_cannot_be_split_is_refused_where_a_context_is_asked_for(
    oracle_dir: Path, models: Models, group: str
) -> None:
    """Where the reference dies on a cache the plan is refused, naming it; without a context it is made."""
    refused: dict[str, set[str]] = defaultdict(set)
    known = _known(oracle_dir, group)
    for record in records(oracle_dir, f"split/{group}"):
        understanding = models(group, record["file"]) if record["file"] in known else None
        aborts = {name for name, answer in record["states"].items() if answer == "abort"}
        if understanding is None or not understanding.architecture.capabilities.tensor_split or not aborts:
            continue
        asked = _asked(record)
        with pytest.raises(PlanError) as error:
            plan_split(understanding, asked)
        assert "unsupported_split" == error.value.code
        assert error.value.facts["tensor"] in aborts
        refused[record["file"]].add(str(error.value.facts["tensor"]))
        if all(is_cache(name) for name in aborts):
            assert () == plan_split(understanding, replace(asked, context=None)).caches
    assert any(is_cache(name) for names in refused.values() for name in names)


def test_every_cache_lives_beside_its_layer(oracle_dir: Path, models: Models) -> None:
    """In layer mode the device of every cache agrees, also where layers stay on the host or weights were overridden."""
    known = _known(oracle_dir, "real")
    compared = 0
    for record in records(oracle_dir, "place/real"):
        if record["file"] not in known or not record["n_ctx"]:
            continue
        wanted = targets(
            SplitMode.LAYER, record["n_devices"], record["tensor_split"], record["n_gpu_layers"], record["overrides"]
        )
        plan = plan_split(models("real", record["file"]), replace(wanted, context=MemoryRequest(n_ctx=record["n_ctx"])))
        expected = {name: on_host(device) for name, device in record["caches"].items()}
        assert (record["file"], expected) == (record["file"], {cache.name: cache.device for cache in plan.caches})
        compared += len(expected)
    assert compared > 0
