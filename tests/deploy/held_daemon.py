"""A daemon whose loads stay in one stage for a while, deaf to everything: what a slow disk or a bad device does.

`python -m tests.deploy.held_daemon STAGE SECONDS [flags of ggufd serve]`
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import app.loading.run
from app.main import main

STEP_OF = {
    "reading": "read_model_file",
    "planning": "plan_split",
    "negotiating": "negotiate",
    "allocating": "allocate",
    "transferring": "place",
    "verifying": "require_complete",
}
"""The step of `run_load` that makes up each stage."""


def held(step: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The step, after `seconds` of nothing."""

    def wait_first(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return step(*arguments, **options)

    return wait_first


def run(stage: str, seconds: str, *flags: str) -> int:
    """Serve with the stage held."""
    name = STEP_OF[stage]
    setattr(app.loading.run, name, held(getattr(app.loading.run, name), float(seconds)))
    return main(["serve", "--port=0", *flags])


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
