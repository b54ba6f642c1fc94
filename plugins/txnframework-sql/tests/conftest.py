"""Fixtures for database URLs and for other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for what several of these tests have in common

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """
    Return the URL of an empty database: a file that does not exist yet or, with TXN_BACKENDS=postgresql, one on a
    server.
    """
    if os.environ.get("TXN_BACKENDS") != "postgresql":
        yield f"sqlite:///{tmp_path / 'data' / 'txn.db'}"
        return
    from txnframework_sql.testing.servers.databases import fresh_database

    with fresh_database() as fresh:
        yield fresh


@pytest.fixture
def start() -> Iterator[Start]:
    """Start ``worker.py`` in another process, which is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
