import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from app.ggml import BY_NAME
from app.main import main
from app.modelfile.types import ValueType
from app.modelfile.writer import Typed
from tests.builders import t0, vocabulary


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which sentences stay on one line."""
    monkeypatch.setenv("COLUMNS", "500")


def inspect(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> str:
    """What the command prints; it must end well."""
    assert 0 == main(["inspect", str(path), *flags])
    said = capsys.readouterr()
    assert "" == said.err
    return said.out


def as_json(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    """The same as JSON."""
    found = json.loads(inspect(capsys, path, "--json"))
    assert isinstance(found, dict)
    return found


def test_a_model_is_shown_with_its_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Architecture, size, facts of its layers, tensors by type and metadata are there for people."""
    text = inspect(capsys, t0(tmp_path / "t0.gguf", types={"output.weight": "f16"}))
    for words in ("can be loaded", "llama", "21 tensors", "n_head_kv", "2 in all 2 layers", "f32", "f16"):
        assert words in text
    assert "general.architecture" in text


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON carries facts, metadata, types and every tensor."""
    found = as_json(capsys, t0(tmp_path / "t0.gguf"))
    assert (True, None, 21, 312_576, 3) == tuple(
        found[key] for key in ("loadable", "problem", "n_tensors", "n_bytes", "version")
    )
    assert "llama" == found["model"]["arch"]
    assert 21 == len(found["tensors"]) == sum(one["tensors"] for one in found["quantisation"]["types"])
    assert {"key": "llama.block_count", "type": "u32", "value": 2, "complete": True} in found["metadata"]


def test_long_arrays_are_abbreviated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a vocabulary its length and its first words are shown."""
    path = t0(tmp_path / "t0.gguf", set_keys=vocabulary(32))
    tokens = next(one for one in as_json(capsys, path)["metadata"] if one["key"] == "tokenizer.ggml.tokens")
    assert ("array", "string", 32, [f"t{index}" for index in range(8)], False) == tuple(
        tokens[name] for name in ("type", "element_type", "count", "value", "complete")
    )
    assert "32: [t0, t1, t2, t3, t4, t5, t6, t7, …]" in inspect(capsys, path)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"general.architecture": "clip"}, "not_a_model"),
        ({"general.type": "adapter"}, "not_a_model"),
        ({"general.architecture": "nosuch"}, "unsupported_architecture"),
        ({"general.architecture": None}, "unsupported_architecture"),
        ({"llama.block_count": None}, "missing_key"),
        ({"llama.embedding_length": 32}, "wrong_shape"),
    ],
)
def test_what_cannot_be_loaded_is_shown_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: str
) -> None:
    """A projector, an adapter, an unknown or a broken model is inspected like any other, and told apart."""
    path = t0(tmp_path / "t0.gguf", set_keys=changes)
    assert f"cannot be loaded: {code}: " in inspect(capsys, path)
    found = as_json(capsys, path)
    assert (False, code, 21) == (found["loadable"], found["problem"]["code"], len(found["tensors"]))


def test_words_of_strangers_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and line feeds in metadata come out as escapes."""
    path = t0(tmp_path / "t0.gguf", set_keys={"general.name": "\x1b[2Jgone\nnext"})
    text = inspect(capsys, path)
    assert r"\x1b[2Jgone\nnext" in text
    assert "\x1b" not in text


def test_numbers_that_json_lacks_are_shown_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An infinite value in the metadata does not make the JSON invalid."""
    path = t0(tmp_path / "t0.gguf", set_keys={"x.scale": float("inf")})
    assert {"key": "x.scale", "type": "f32", "value": "inf", "complete": True} in as_json(capsys, path)["metadata"]


def test_disagreements_are_told_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing, of a wrong shape and not known is listed, each with what was expected and found."""
    f32 = BY_NAME["f32"]
    path = t0(
        tmp_path / "t0.gguf",
        drop={"blk.1.ffn_norm.weight"},
        shapes={"blk.0.attn_k.weight": (64, 48)},
        add=[("blk.0.foo.weight", f32, (8,))],
    )
    words = re.sub(r" +", " ", inspect(capsys, path))
    for section in (
        "missing tensors (1)\n blk.1.ffn_norm.weight expected 64\n",
        "tensors of a wrong shape (1)\n blk.0.attn_k.weight 64 × 48, expected 64 × 32\n",
        "tensors that the architecture does not know (1)\n blk.0.foo.weight f32 8\n",
    ):
        assert section in words
    found = as_json(capsys, path)
    assert {"missing": 1, "wrong": 1, "extra": 1, "unused": 0} == found["counts"]
    assert [64, 32] == found["wrong"][0]["expected"]


def test_every_fault_of_the_metadata_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not only the first key that a load would stumble over is named, but all that are missing or wrong."""
    keys = {"llama.context_length": None, "llama.expert_count": 2000, "llama.rope.scaling.type": "su"}
    found = as_json(capsys, t0(tmp_path / "t0.gguf", set_keys=keys))
    assert "missing_key" == found["problem"]["code"]
    assert {("missing_key", "llama.context_length"), ("bad_value", "llama.expert_count")} < {
        (one["code"], one["key"]) for one in found["keys"]
    }
    assert 3 == len(found["keys"])
    assert "also wrong in the metadata\n  llama.expert_count is 2000" in inspect(capsys, tmp_path / "t0.gguf")


def test_a_file_without_a_header_is_an_error_that_json_has_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a broken file the problem is told, as the command's error or as JSON, and the command ends with 1."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"tjgg" + bytes(60))
    assert 1 == main(["inspect", str(path)])
    assert capsys.readouterr().err.startswith("ggufd: bad_magic: ")
    assert 1 == main(["inspect", "--json", str(path)])
    found = json.loads(capsys.readouterr().out)
    assert ("bad_magic", 64, None) == (found["problem"]["code"], found["size_bytes"], found["metadata"])


def test_equal_tokens_are_found_in_any_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two equal tokens are a warning, however long the vocabulary is."""
    words = [f"a long token {index:08d}" for index in range(50_000)]  # over a megabyte
    words[7] = words[5]
    keys = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": Typed(ValueType.STRING, words, array=True)}
    path = t0(tmp_path / "t0.gguf", set_keys=keys, shapes={"token_embd.weight": (64, 50_000)}, seed=None)
    assert "the first are 5 and 7, both 'a long token 00000005'" in inspect(capsys, path)
    (warning,) = as_json(capsys, path)["warnings"]
    assert warning.startswith("tokenizer.ggml.tokens: 1 tokens occur before")


def test_a_path_of_any_bytes_is_shown_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is not UTF-8, or holds a line feed, comes escaped, as text and as JSON."""
    path = t0(Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff\n.gguf")))
    escaped = rf"{tmp_path}/a\xff\n.gguf"
    assert escaped in inspect(capsys, path)
    assert [escaped] == as_json(capsys, path)["files"]


def test_no_line_is_wider_than_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal of 80 columns sentences and values are wrapped."""
    monkeypatch.setenv("COLUMNS", "80")
    words = [f"token {index}" for index in range(64)]
    keys = {"tokenizer.ggml.tokens": Typed(ValueType.STRING, words, array=True), "general.name": "a name " * 20}
    path = t0(tmp_path / "t0.gguf", set_keys=keys, shapes={"output_norm.weight": (32,)})
    lines = inspect(capsys, path).splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert "wrong_shape" in " ".join(lines)
