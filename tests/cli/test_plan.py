import json
from pathlib import Path

import pytest

from app.main import main
from tests.builders import t0


def test_a_plan_is_shown_with_its_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People see what each device gets, how tensors are cut, examples with their reasons, and the load mode."""
    path = t0(tmp_path / "t0.gguf", 4)
    assert 0 == main(["plan", str(path), "--split-mode", "tensor", "--devices", "8GiB,4GiB"])
    text = capsys.readouterr().out
    for words in ("device0", "device1", "host", "fits", "cut along axis 1", "mirrored", "policy:", "load mode"):
        assert words in text


def test_a_plan_that_does_not_fit_says_what_is_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A device that is too small is named with the bytes it lacks; the plan is made all the same."""
    path = t0(tmp_path / "t0.gguf", 4)
    assert 0 == main(["plan", str(path), "--devices", "small=100KB"])
    assert "short of" in capsys.readouterr().out


def test_json_is_the_plan_of_the_wire(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints what `POST /v1/plans` answers."""
    path = t0(tmp_path / "t0.gguf", 4)
    assert 0 == main(["plan", str(path), "--json", "--devices", "a=1GiB", "--override", "ffn=host"])
    plan = json.loads(capsys.readouterr().out)
    assert {"plan_id", "fits", "tensors", "devices", "load_mode", "model"} <= plan.keys()
    assert {"host", "a"} == {tensor["device"] for tensor in plan["tensors"]}


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--devices", "nowhere"], "bad_request"),
        (["--tensor-split", "1,-1", "--devices", "1GiB,1GiB"], "bad_request"),
        (["--split-mode", "row"], "unsupported_split"),
        (["--override", "(=host"], "bad_request"),
    ],
)
def test_what_cannot_be_planned_is_one_line_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: str
) -> None:
    """A refusal is a line on standard error, with 1, and nothing on standard output."""
    assert 1 == main(["plan", str(t0(tmp_path / "t0.gguf")), *flags])
    said = capsys.readouterr()
    assert ("", True, 1) == (said.out, said.err.startswith(f"ggufd: {code}: "), said.err.count("\n"))


def test_one_file_or_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file and a batch together, or neither, are refused."""
    assert 1 == main(["plan"])
    assert 1 == main(["plan", "a.gguf", "--batch", "-"])
    assert 2 == capsys.readouterr().err.count("either one FILE or --batch")
