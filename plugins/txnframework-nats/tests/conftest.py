"""A prefix of its own for every test, on a real server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from txnframework_nats.testing.servers.nats import Nats, shared_hosts


@pytest.fixture
def url() -> str:
    """A place that is not there yet, on a server that others use."""
    return f"nats://{shared_hosts()}/tests-{secrets.token_hex(8)}"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Nats]:
    """Three servers of the test's own, to pause and to kill."""
    with Nats(tmp_path / "cluster", servers=3) as nats:
        yield nats
