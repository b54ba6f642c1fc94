"""An Apache Pulsar of one process, through Maven: with transactions, and synced to disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VERSION: Final = "4.0.6"
"""The newest release whose distribution Maven Central has."""

_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_NAME: Final = "pulsar-server-distribution"
_SETTINGS: Final = {"transactionCoordinatorEnabled": "true", "journalSyncData": "true"}
_ENVIRONMENT: Final = {"PULSAR_MEM": "-Xms512m -Xmx1g -XX:MaxDirectMemorySize=1g"}
_START_WITHIN_S: Final = 180.0


@contextmanager
def pulsar_broker(folder: Path) -> Iterator[str]:
    """Run a broker whose program and new data are in ``folder``; yields its URL."""
    home = _distribution(folder)
    shutil.rmtree(home / "data", ignore_errors=True)
    ports = {"brokerServicePort": _free_port(), "webServicePort": _free_port()}
    _configure(home / "conf" / "standalone.conf", {**_SETTINGS, **{name: str(port) for name, port in ports.items()}})
    with (
        (folder / "broker.log").open("wb") as log,
        subprocess.Popen(
            ["bin/pulsar", "standalone", "--no-stream-storage", "--no-functions-worker"],
            cwd=home,
            env={**os.environ, **_ENVIRONMENT},
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait_for(process, f"http://127.0.0.1:{ports['webServicePort']}/admin/v2/persistent/public/default")
            yield f"pulsar://127.0.0.1:{ports['brokerServicePort']}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _distribution(folder: Path) -> Path:
    """Return the folder of the program; Maven fetches it, unless it is there."""
    home = folder / f"apache-pulsar-{VERSION}"
    if home.is_dir():
        return home
    if shutil.which("mvn") is None:
        raise SystemExit("this needs Maven: install mvn, and let it reach Maven Central")
    folder.mkdir(parents=True, exist_ok=True)
    artifact = f"-Dartifact=org.apache.pulsar:{_NAME}:{VERSION}:tar.gz:bin"
    copy = [f"{_PLUGIN}:get", artifact, "-Dtransitive=false"], [f"{_PLUGIN}:copy", artifact, "-DoutputDirectory=."]
    for goal in copy:
        subprocess.run(["mvn", "-q", "-B", *goal], cwd=folder, check=True)
    with tarfile.open(folder / f"{_NAME}-{VERSION}-bin.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return home


def _configure(file: Path, settings: dict[str, str]) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("=")[0] not in settings]
    file.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in settings.items()), ""]), encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], ready: str) -> None:
    deadline = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(ready, timeout=10):
                return
        except OSError:
            time.sleep(0.5)
    raise SystemExit("Pulsar did not start; see broker.log")
