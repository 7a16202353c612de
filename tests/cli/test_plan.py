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
    """A device that is too small is named with the bytes it lacks, at the head; the plan is made all the same."""
    path = t0(tmp_path / "t0.gguf", 4)
    assert 0 == main(["plan", str(path), "--devices", "small=100KB"])
    assert capsys.readouterr().out.splitlines()[1].startswith("does not fit: small is short of ")
    assert 0 == main(["plan", str(path), "--devices", "1GiB"])
    assert "fits" == capsys.readouterr().out.splitlines()[1]


def test_every_tensor_is_listed_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--tensors` has a line for each tensor and cache, with what each device gets of it, and why."""
    flags = ["--split-mode", "tensor", "--devices", "8GiB,4GiB", "--n-ctx", "256"]
    path = str(t0(tmp_path / "t0.gguf", 4))
    assert 0 == main(["plan", path, *flags, "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert 0 == main(["plan", path, *flags, "--tensors"])
    text = capsys.readouterr().out.split("all tensors (")[1]
    for tensor in (*plan["tensors"], *plan["caches"]):
        assert f"\n  {tensor['name']} (" in text
    assert len(plan["tensors"]) + len(plan["caches"]) == sum(
        line.startswith("  ") and line[2] != " " for line in text.splitlines()
    )
    assert "device0 16 (8.0 KiB), device1 16 (8.0 KiB)" in text


def test_an_example_of_a_cut_is_one_that_all_devices_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor too small for every device to get some of it is no example of an even cut, unless there is no other."""
    path = str(t0(tmp_path / "t0.gguf", 4))
    assert 0 == main(["plan", path, "--split-mode", "tensor", "--devices", "8GiB,8GiB"])
    shared = capsys.readouterr().out
    assert 0 == main(["plan", path, "--split-mode", "tensor", "--devices", ",".join(["1GiB"] * 16)])
    assert "rotation:" in capsys.readouterr().out
    shares = [line.split("elements:")[1].split("|") for line in shared.splitlines() if "elements:" in line]
    assert shares
    assert all(int(share) for example in shares for share in example)


@pytest.mark.parametrize("command", [["plan", "--audit", "--tensors"], ["verify-plan", "--numeric"]])
def test_no_line_is_wider_than_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """On a terminal of 80 columns sentences are wrapped."""
    monkeypatch.setenv("COLUMNS", "80")
    path = str(t0(tmp_path / "t0.gguf", 4))
    assert 0 == main([*command, path, "--split-mode", "tensor", "--devices", "8GiB,8GiB"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("the plan is legal: all ")]


def test_a_flag_for_a_proof_that_was_not_asked_for_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    """Layers and seeds are of the numeric proof; without it they would be ignored."""
    for flag in ("--layers", "--seed"):
        assert 2 == main(["verify-plan", "x.gguf", flag, "3"])
        assert flag in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["-1", str(2**32)])
def test_a_seed_that_is_none_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: str) -> None:
    """A seed outside 32 bits is named, with 2."""
    words = ["verify-plan", str(t0(tmp_path / "m.gguf")), "--numeric", "--split-mode", "tensor", f"--seed={seed}"]
    assert 2 == main([*words, "--devices", "1GiB,1GiB"])
    assert f"--seed: {seed} is not a whole number from 0 to" in capsys.readouterr().err


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
        (["--devices", "8XB"], "bad_request"),
        (["--devices", "8GiB,,4GiB"], "bad_request"),
        (["--override", "ffn"], "bad_request"),
        (["--tensor-split", "a,b"], "bad_request"),
        (["--tensor-split", "1,-1", "--devices", "1GiB,1GiB"], "bad_request"),
        (["--split-mode", "row"], "unsupported_split"),
        (["--override", "(=host"], "bad_request"),
    ],
)
def test_what_cannot_be_planned_is_one_line_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: str
) -> None:
    """A refusal is a line on standard error, with 1, or 2 for a wish that makes no sense, and nothing else."""
    assert (2 if code == "bad_request" else 1) == main(["plan", str(t0(tmp_path / "t0.gguf")), *flags])
    said = capsys.readouterr()
    assert ("", True, 1) == (said.out, said.err.startswith(f"ggufd: {code}: "), said.err.count("\n"))


def test_one_file_or_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file and a batch together, or neither, are refused."""
    assert 2 == main(["plan"])
    assert 2 == main(["plan", "a.gguf", "--batch", "-"])
    assert 2 == capsys.readouterr().err.count("either one FILE or --batch")
