import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.batch import bounded_lines
from app.main import main
from tests.builders import t0

DEVICES = [{"name": "d0", "memory_bytes": 1 << 30}, {"name": "d1", "memory_bytes": 1 << 30}]


def answers(capsys: pytest.CaptureFixture[str], lines: list[bytes], folder: Path) -> list[dict[str, Any]]:
    """What a batch of `lines` answers; it must end with 0."""
    batch = folder / "batch.jsonl"
    batch.write_bytes(b"\n".join(lines) + b"\n")
    assert 0 == main(["plan", "--batch", str(batch)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_request_is_answered_in_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans and problems come in the order of the requests, one a line, and problems do not change the exit code."""
    good = json.dumps({"model": str(t0(tmp_path / "t0.gguf", 4)), "devices": DEVICES, "tensor_split": [3, 1]}).encode()
    found = answers(capsys, [good, b"nonsense", b'{"model": "/no/such.gguf"}', b"[]", good, b"\xff"], tmp_path)
    assert [None, "bad_request", "model_not_found", "bad_request", None, "bad_request"] == [
        one.get("code") for one in found
    ]
    assert found[0] == found[4]
    assert "tensors" in found[0]


def test_a_problem_is_complete_and_never_looks_like_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem has type, title, status, code and detail, and no `tensors`, whatever is wrong."""
    path = str(t0(tmp_path / "t0.gguf"))
    extra = str(t0(tmp_path / "t1.gguf", set_keys={"llama.block_count": 1}))
    wishes = [
        {"model": extra},
        {"model": str(tmp_path)},
        {"model": path, "split_mode": "row"},
        {"model": path, "devices": [{"name": "d", "memory_bytes": -1}]},
        {"model": path, "tensor_split": [1, 1, 1, 1]},
        {"model": path, "nonsense": 1},
        {"model": 1},
    ]
    for found in answers(capsys, [json.dumps(wish).encode() for wish in wishes], tmp_path):
        assert {"type", "title", "status", "code", "detail"} <= found.keys()
        assert "tensors" not in found


def test_a_plan_that_does_not_fit_is_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Too little memory is an answer with `fits: false`, not a problem."""
    wish = {"model": str(t0(tmp_path / "t0.gguf")), "devices": [{"name": "d", "memory_bytes": 1}]}
    (found,) = answers(capsys, [json.dumps(wish).encode()], tmp_path)
    assert (False, True) == (found["fits"], "tensors" in found)


def test_models_are_found_from_the_working_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is relative to where the command runs; there are no roots."""
    t0(tmp_path / "t0.gguf")
    monkeypatch.chdir(tmp_path)
    (found,) = answers(capsys, [b'{"model": "t0.gguf"}'], tmp_path)
    assert "plan_id" in found


def test_requests_on_standard_input_are_answered_one_by_one(tmp_path: Path) -> None:
    """Each answer is written before the next request is read, so that a program can hold a conversation."""
    wish = json.dumps({"model": str(t0(tmp_path / "t0.gguf"))}).encode() + b"\n"
    with subprocess.Popen(
        [sys.executable, "-m", "app", "plan", "--batch", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            process.stdin.write(wish)
            process.stdin.flush()
            assert "plan_id" in json.loads(process.stdout.readline())
        process.stdin.close()
        assert 0 == process.wait(20)


def test_a_line_that_is_too_long_is_a_problem_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An endless line costs bounded memory, answers a problem, and the next request is answered as ever."""
    good = json.dumps({"model": str(t0(tmp_path / "t0.gguf"))}).encode()
    found = answers(capsys, [b"x" * 3_000_000, good], tmp_path)
    assert ["payload_too_large", None] == [one.get("code") for one in found]


def test_blank_lines_are_passed_over_and_problems_have_the_number_of_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is answered to an empty line; a problem can still be matched with its request."""
    good = json.dumps({"model": str(t0(tmp_path / "t0.gguf"))}).encode()
    found = answers(capsys, [b"", b"nonsense", b"  ", good, b"", b"x" * 3_000_000], tmp_path)
    assert [2, None, 6] == [one.get("line") for one in found]


@pytest.mark.parametrize("flags", [["--split-mode", "tensor"], ["--n-ctx", "1"], ["--json"], ["--audit"]])
def test_a_flag_that_a_batch_would_ignore_is_misuse(capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    """Each line says what it wants: a wish beside `--batch` would be lost, so it is refused."""
    assert 2 == main(["plan", "--batch", "/dev/null", *flags])
    assert flags[0] in capsys.readouterr().err


def test_a_batch_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its file the command fails in one line."""
    assert 1 == main(["plan", "--batch", str(tmp_path / "none")])
    assert capsys.readouterr().err.startswith("ggufd: not_found: ")
    assert 1 == main(["plan", "--batch", str(tmp_path)])
    assert capsys.readouterr().err.startswith("ggufd: is_directory: ")


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.integers(1, 8))
def test_lines_are_split_as_they_stand(lines: list[bytes], limit: int) -> None:
    """Every line that holds anything gives one item: its number and itself, or None if it is longer than the limit."""
    expected = [
        (number, None if len(line) > limit else line)
        for number, line in enumerate(lines, 1)
        if len(line) > limit or line.strip()
    ]
    found = bounded_lines(io.BytesIO(b"\n".join(lines)), limit)
    assert expected == [(number, line if line is None else line.rstrip(b"\n")) for number, line in found]
