"""The real models some tests load; `python tests/fetch_models.py FOLDER` fetches them."""

import os
from pathlib import Path

import pytest


def real_model_path(name: str) -> Path:
    """The file called `name` in the folder of GGUFD_MODELS; the test is skipped without it."""
    folder = os.environ.get("GGUFD_MODELS")
    if not folder:
        pytest.skip("GGUFD_MODELS is unset: it names the folder that tests/fetch_models.py filled")
    return Path(folder) / name
