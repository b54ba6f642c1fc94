"""Makes the world of these tests importable: test modules are imported by path, so their folder is not on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to a request what a class does not name to be run always, if it names anything."""
    for item in items:
        always = getattr(getattr(item, "cls", None), "always", None)
        if always is not None and getattr(item, "originalname", "") not in always:
            item.add_marker(pytest.mark.slow)
