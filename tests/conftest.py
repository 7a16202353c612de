"""What holds for every test."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Time limits per example and per draw measure the machine, not the code; the suite has a limit of its own.
settings.register_profile(
    "ggufd", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("ci", parent=settings.get_profile("ggufd"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "ggufd")

# A shell starts what it puts in the background with SIGINT ignored, and that passes on to every process started from
# here: a test that interrupts a daemon would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def oracle_dir() -> Path:
    """The folder with the reference's recorded answers; tests that need it are skipped without it."""
    name = os.environ.get("GGUFD_ORACLE")
    if not name:
        pytest.skip("GGUFD_ORACLE is unset: it names the folder with the reference's recorded answers")
    folder = Path(name)
    if not folder.is_dir():
        pytest.skip(f"GGUFD_ORACLE names {folder}, which is no folder")
    return folder
