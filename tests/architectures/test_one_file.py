"""Adding an architecture is adding one file: the proof is one that exists nowhere but here."""

import importlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.architectures.registry import Catalog, load_catalog
from app.architectures.understanding import Understanding, understand
from app.devices.host import HostBackend
from app.devices.simulated import SimulatedBackend
from app.loading.negotiation import LoadMode
from app.loading.readback import join
from app.loading.request import PlanRequest
from app.loading.run import World, run_load
from app.modelfile.reader import read_model_file
from app.planner.audit import audit
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode
from tests.examples import example_file
from tests.oracle import targets

FALCONET = '''"""Falconet, which does not exist: keys, values and queries fused in one tensor, in that order."""

from collections.abc import Iterator
from math import lcm

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.roles import LayerClass, Op, Role
from app.architectures.split import Cut, PolicyRule, SplitOverrides

ATTN_KVQ = Role("attn_kvq", "blk.{}.attn_kvq", LayerClass.REPEATING, Op.MUL_MAT)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_q = hp.n_embd_head_k() * hp.n_head[0]
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(ATTN_KVQ, layer, hp.n_embd, hp.n_embd_k_gqa() + hp.n_embd_v_gqa() + n_q)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


def _runs(cut: Cut) -> tuple[tuple[int, int], ...]:
    hp = cut.hparams
    return (hp.n_embd_k_gqa(cut.layer), 2), (hp.n_head[cut.layer] * hp.n_embd_head_k(cut.layer), 1)


def _steps(cut: Cut) -> tuple[int, ...]:
    group = cut.hparams.n_gqa(cut.layer) * cut.hparams.n_embd_head_k(cut.layer)
    step = lcm(group, cut.block_size)
    return step // cut.hparams.n_gqa(cut.layer), step


ARCHITECTURE = Architecture(
    name="falconet",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    split=SplitOverrides(
        policy={ATTN_KVQ: PolicyRule(axis=1, anchors=(roles.ATTN_OUT,), why="whole heads of all three parts")},
        segments={ATTN_KVQ: _runs},
        granularity={ATTN_KVQ: _steps},
        why={ATTN_KVQ: "K, V, then Q"},
    ),
    example={
        "context_length": 128,
        "embedding_length": 256,
        "block_count": 2,
        "feed_forward_length": 512,
        "attention.head_count": 8,
        "attention.head_count_kv": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
    },
)
'''


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog of one file, beside the product's own."""
    package = tmp_path / "catalog_with_falconet"
    package.mkdir()
    (package / "__init__.py").write_text('"""A catalog of one."""\n')
    (package / "falconet.py").write_text(FALCONET)
    monkeypatch.syspath_prepend(tmp_path)
    return load_catalog(importlib.import_module("catalog_with_falconet"))


@pytest.fixture
def understanding(catalog: Catalog, tmp_path: Path) -> Understanding:
    path = example_file(catalog.get("falconet"), tmp_path / "falconet.gguf")
    return understand(read_model_file(path), catalog)


def test_its_fused_tensor_is_cut_by_its_own_rule(understanding: Understanding) -> None:
    """A tensor nobody else has is classified, cut in its own runs at its own steps, and says why."""
    plan = plan_split(understanding, targets(SplitMode.TENSOR, 3))
    (fused, *_) = [tensor for tensor in plan.tensors if tensor.role == "attn_kvq"]
    assert (1, [((32, 32, 64), 2), ((64, 64, 128), 1)]) == (
        fused.axis,
        [(part.extents, part.repeats) for part in fused.segments],
    )
    assert ("K, V, then Q", (32, 64)) == (fused.why.segmentation, fused.granularity)
    assert all(proof.holds for proof in audit(plan, understanding))


@pytest.mark.parametrize("mode", [SplitMode.LAYER, SplitMode.TENSOR])
def test_it_is_loaded_and_joined(catalog: Catalog, understanding: Understanding, mode: SplitMode) -> None:
    """The new architecture is loaded over devices like any other, and comes back byte for byte."""
    names = ("d0", "d1", "d2")
    backends = {name: SimulatedBackend(name, 1 << 30, keep_bytes=True) for name in names}
    world = World(catalog=catalog, backends={"host": HostBackend("host", 1 << 30), **backends})
    path = understanding.model.shards[0].path
    request = PlanRequest(model=str(path), split_mode=mode, devices=names, load_mode=LoadMode.NONE)
    loaded = run_load(request, world, lambda _signal: None, threading.Event())
    raw, plan = path.read_bytes(), loaded.prepared.plan
    for index, tensor in enumerate(plan.tensors):
        source = tensor.source
        assert source is not None
        expected = raw[source.offset : source.offset + source.nbytes]
        assert expected == join(plan, loaded.layout, loaded.buffers, index), tensor.name
    loaded.free()


def test_the_file_is_typed(tmp_path: Path) -> None:
    """What a catalog file is made of is checked by the type checker like everything else."""
    path = tmp_path / "falconet.py"
    path.write_text(FALCONET)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "mypy"), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, "Success: no issues found in 1 source file\n")
