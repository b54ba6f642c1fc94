"""Killing a driver kills the processes of its session, and no others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from txnframework_spark.testing.processes import DriverProcess, list_processes

FAMILY = """
import os, subprocess, sys, time
child = [sys.executable, "-c", "import os, time; os.setpgid(0, 0); print('ready', flush=True); time.sleep(600)"]
subprocess.Popen(child).pid
subprocess.Popen(child).pid
time.sleep(600)
"""


def started(tmp_path: Path, program: str) -> DriverProcess:
    return DriverProcess([sys.executable, "-c", program], os.environ, tmp_path / "log")


def wait_for(log: Path, text: str, times: int) -> None:
    while log.read_text().count(text) < times:
        pass


def test_killing_leaves_nobody_of_the_session(tmp_path: Path) -> None:
    """Children in process groups of their own are killed too, although their groups get no signal."""
    driver = started(tmp_path, FAMILY)
    wait_for(driver.log, "ready", 2)
    assert len(list_processes(driver.pid)) == 3
    killed = driver.kill()
    assert killed.python == driver.pid
    assert len(killed.workers) == 2
    assert list_processes(driver.pid) == ()
    assert driver.status() == -9


def test_killing_again_changes_nothing(tmp_path: Path) -> None:
    """Cleaning up may come after a kill."""
    driver = started(tmp_path, "import time; time.sleep(600)")
    driver.kill()
    assert driver.kill().workers == ()


def test_a_driver_that_ended_says_its_status(tmp_path: Path) -> None:
    """And what it wrote stands in its log."""
    driver = started(tmp_path, "print('done'); raise SystemExit(3)")
    while driver.status() is None:
        pass
    assert driver.status() == 3
    assert driver.log.read_text() == "done\n"
    driver.kill()


def test_this_process_belongs_to_another_session(tmp_path: Path) -> None:
    """Which is why it is not killed with the driver."""
    driver = started(tmp_path, "import time; time.sleep(600)")
    assert os.getpid() not in {found.pid for found in list_processes(driver.pid)}
    driver.kill()
