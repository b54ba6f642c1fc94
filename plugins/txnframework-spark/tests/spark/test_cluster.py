"""The cluster for tests: two workers apart from each other, whom a test finds, and of whom nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from txnframework_spark.errors import JavaUnusable
from txnframework_spark.java import check_java
from txnframework_spark.testing.cluster import StandaloneCluster
from txnframework_spark.unix_sessions import living

WAIT_S = 60

DRIVER = """
import json, os, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
folders = spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getcwd()).distinct().collect()
print(json.dumps(folders), flush=True)
sys.stdin.read()
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    try:
        check_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when it is so."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_executors_and_workers_are_found_and_replaced(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Tasks run in folders below the cluster's; a killed executor gets a successor, and so does a killed worker."""
    command = [sys.executable, "-c", DRIVER, json.dumps(dict(cluster.conf))]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=tmp_path
        )
        try:
            assert driver.stdout is not None
            folders = json.loads(driver.stdout.readline())
            assert all(Path(folder).is_relative_to(cluster.folder) for folder in folders)
            wait_for(lambda: len(cluster.executors()) == 2)
            assert cluster.python_workers()
            killed = cluster.executors()[0]
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: len(cluster.executors()) == 2 and killed not in cluster.executors())
            first = cluster.worker_pids[0]
            cluster.kill_worker(first)
            assert not living(first)
            assert cluster.start_worker() == cluster.worker_pids[-1]
            wait_for(lambda: len(cluster.executors()) == 2)
        finally:
            driver.communicate()
    wait_for(lambda: not cluster.executors())


def test_nothing_outlives_it(cluster: StandaloneCluster) -> None:
    """Neither workers nor master; it may be stopped twice."""
    pids = cluster.worker_pids
    cluster.stop()
    assert cluster.worker_pids == ()
    assert not any(living(pid) for pid in pids)
