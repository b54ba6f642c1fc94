"""Every kind of connection of an application to a SQLite file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sqlite_connections import KINDS


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """Return what opens a connection of one kind."""
    return KINDS[request.param]
