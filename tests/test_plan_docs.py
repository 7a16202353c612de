"""docs/plans.md is held to the code: proofs, fields, and the faults that the audit finds."""

import re
from pathlib import Path

import pytest

from app.architectures.understanding import Understanding, understand
from app.modelfile.reader import read_model_file
from app.planner.audit import audit
from app.planner.pipeline import plan_split
from app.planner.plan import SplitMode
from app.planner.render import tensor_json
from tests.builders import t0
from tests.faults import REFERENCE_FAULTS
from tests.oracle import targets, the_catalog

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "plans.md").read_text()


@pytest.fixture
def understanding(tmp_path: Path) -> Understanding:
    return understand(read_model_file(t0(tmp_path / "m.gguf")), the_catalog())


def test_every_proof_is_explained(understanding: Understanding) -> None:
    """Each proof has its row, and no row is about a proof that is not made."""
    table = TEXT[TEXT.index("| proof | says |") : TEXT.index("`ggufd plan --audit`")]
    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    plan = plan_split(understanding, targets(SplitMode.TENSOR, 2))
    assert [proof.proof for proof in audit(plan, understanding)] == told


def test_every_field_of_an_entry_is_explained(understanding: Understanding) -> None:
    """What an entry shows beyond its name, type, shape and sizes is on the page."""
    (tensor, *_) = plan_split(understanding, targets(SplitMode.TENSOR, 2)).tensors
    plain = {"name", "type", "shape", "bytes", "bytes_per_device", "granularity"}
    assert set() == {field for field in tensor_json(tensor) if field not in plain and f"`{field}`" not in TEXT}


def test_the_references_faults_are_listed() -> None:
    """The faults the audit may find in the reference's own cuts are those on the page."""
    table = TEXT[TEXT.index("| architecture | proof | why |") :]
    rows = re.findall(r"^\| (`.+?`) \| `(\w+)` \|", table, re.MULTILINE)
    told = {(name, proof) for names, proof in rows for name in re.findall(r"`(\S+?)`", names)}
    assert told == REFERENCE_FAULTS


def test_the_readme_leads_there() -> None:
    """The page is linked from the README."""
    assert "docs/plans.md" in (ROOT / "README.md").read_text()
