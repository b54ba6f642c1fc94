"""How many examples are tried: few by default and always the same, many where they are asked for."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, database=None, suppress_health_check=list(HealthCheck)
)
settings.register_profile("long", settings.get_profile("default"), derandomize=False, max_examples=5_000)
settings.load_profile("default")
