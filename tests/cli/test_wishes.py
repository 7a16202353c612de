import argparse
from typing import Any

import pytest

from app.api.bodies import plan_request
from app.cli.wishes import add_wish_arguments, wish_body
from app.errors import RequestError
from app.units import GIB


def body(*words: str) -> dict[str, Any]:
    """The body that the flags mean."""
    parser = argparse.ArgumentParser()
    add_wish_arguments(parser)
    return wish_body(parser.parse_args(words), "m.gguf")


def test_without_flags_only_the_model_is_said() -> None:
    """Every default is left to the one who knows it."""
    assert {"model": "m.gguf"} == body()


def test_every_flag_arrives() -> None:
    """The flags make a body that the edge takes."""
    said = body(
        "--devices", "host0,8GiB,big=24GiB", "--split-mode", "tensor", "--tensor-split", "3,1.5,0",
        "--main-device", "big", "--n-gpu-layers", "-1", "--override", "a=b=host", "--load-mode", "none",
    )  # fmt: skip
    assert {
        "model": "m.gguf",
        "devices": [
            "host0",
            {"name": "device1", "kind": "simulated", "memory_bytes": 8 * GIB},
            {"name": "big", "kind": "simulated", "memory_bytes": 24 * GIB},
        ],
        "split_mode": "tensor",
        "tensor_split": [3.0, 1.5, 0.0],
        "main_device": "big",
        "n_gpu_layers": -1,
        "overrides": [{"pattern": "a=b", "device": "host"}],
        "load_mode": "none",
    } == said
    assert plan_request(said).tensor_split == (3.0, 1.5, 0.0)


@pytest.mark.parametrize(
    ("flag", "text"), [("--devices", "8 apples"), ("--tensor-split", "a,b"), ("--override", "no-device")]
)
def test_a_flag_that_makes_no_sense_is_named(flag: str, text: str) -> None:
    """The error begins with the flag."""
    with pytest.raises(RequestError, match=f"^{flag}: "):
        body(flag, text)
