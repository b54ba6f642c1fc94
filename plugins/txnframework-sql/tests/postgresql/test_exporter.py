"""The exporter of metrics starts while the server is away, as a process that is restarted during an outage does."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Stores

PATIENCE_S = 120


@contextmanager
def exporter(folder: Path, url: str) -> Iterator[str]:
    """Run an exporter, and yield the URL of its metrics."""
    (folder / "txn.toml").write_text(f'[metadata]\nurl = "{url}"\n')
    command = [sys.executable, "-m", "txnframework", "--config", "txn.toml", "metrics", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            (served,) = re.findall(r"http://[^;]+", process.stdout.readline())
            yield served
        finally:
            process.kill()


def is_up(served: str) -> bool:
    """Return what a scrape says of the stores."""
    with urllib.request.urlopen(served, timeout=PATIENCE_S) as answer:
        (found,) = re.findall(r"^txnframework_up ([01])\.0$", answer.read().decode(), re.M)
    return bool(int(found))


def test_a_server_that_is_down(stores: Stores, tmp_path: Path) -> None:
    """Scrapes report the outage; after the server is back, they work without a restart of the exporter."""
    stores.server.kill()
    try:
        with exporter(tmp_path, stores.url) as served:
            assert not is_up(served)
            stores.server.start()
            while not is_up(served):
                pass
    finally:
        if not stores.server.is_running:
            stores.server.start()


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    """The exporter does not wait for the server until the first scrape."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://user@127.0.0.1:{silent.getsockname()[1]}/txn?connect_timeout={PATIENCE_S}"
        with exporter(tmp_path, url) as served:
            assert not is_up(served)
