"""What holds for every test."""

import os

from hypothesis import HealthCheck, settings

# Time limits per example and per draw measure the machine, not the code; the suite has a limit of its own.
settings.register_profile("ggufd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("ggufd"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "ggufd")
