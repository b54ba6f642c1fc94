"""A cluster of two workers, as spark-cluster.md shows it: found, used by a pipeline, and nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from txnframework_spark.errors import JavaUnusable
from txnframework_spark.session import check_java
from txnframework_spark.testing.cluster import StandaloneCluster
from txnframework_spark.testing.pipelines import WAIT_S
from txnframework_spark.testing.processes import list_processes
from txnframework_spark.workers import INTERPRETER_VARIABLES
from txnframework_sql.testing.servers.databases import fresh_database

DRIVER = """
import json, os, sys
from pathlib import Path

from rich.console import Console

from txnframework.model.names import TopicName
from txnframework_spark.jobs.export_folder import ExportFolder
from txnframework_spark.jobs.export import Export
from txnframework_spark.jobs.session import JobProgress
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.session import spark_session

conf, url, folders = json.loads(sys.argv[1])
with spark_session(conf, None) as spark:
    used = spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getcwd()).distinct().collect()
    print(json.dumps(used), flush=True)
    found = {}
    for name, folder in folders.items():
        work = Export(StoreOptions(metadata=url), TopicName.parse("in"), ExportFolder(Path(folder)), 5)
        try:
            found[name] = f"{work.run(spark, JobProgress(Console(quiet=True))).exported.messages} messages"
        except Exception as error:
            found[name] = str(error)
    print(json.dumps(found), flush=True)
    sys.stdin.read()
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


def test_an_application_and_executors_that_are_replaced(
    cluster: StandaloneCluster, tmp_path: Path, stores_of: Any
) -> None:
    """Tasks run in folders below the cluster's; a killed executor gets a successor, and so does a killed worker.

    An export to a folder that is not shared is refused: what executors write stands elsewhere than where the driver
    looks, and without the check it would be passed by.
    """
    stores = stores_of(tmp_path, f"sqlite:///{tmp_path}/txn.db")
    stores.create("in")
    stores.publish([f"value {number}" for number in range(20)])
    folder = tmp_path / "driver"
    folder.mkdir()
    # Every process has a working folder of its own, as every machine has a disk.
    targets = {"each its own": "/proc/self/cwd/out", "shared": str(tmp_path / "out")}
    command = [sys.executable, "-c", DRIVER, json.dumps([dict(cluster.conf), stores.url, targets])]
    environment = {**os.environ, **dict.fromkeys(INTERPRETER_VARIABLES, sys.executable)}
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=folder
        )
        try:
            assert driver.stdout is not None
            used = json.loads(driver.stdout.readline())
            assert all(Path(place).is_relative_to(cluster.folder) for place in used)
            found = json.loads(driver.stdout.readline())
            wait_for(lambda: len(cluster.executors()) == 2)
            assert cluster.python_workers()
            killed = cluster.executors()[0]
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: len(cluster.executors()) == 2 and killed not in cluster.executors())
            first = cluster.worker_pids[0]
            cluster.kill_worker(first)
            assert not list_processes(first)
            assert cluster.start_worker() == cluster.worker_pids[-1]
            wait_for(lambda: len(cluster.executors()) == 2)
        finally:
            driver.communicate()
    wait_for(lambda: not cluster.executors())
    assert found["shared"] == "20 messages"
    assert "executors wrote 20 messages, but /proc/self/cwd/out contains 0 of them" in found["each its own"]
    assert "it must be a folder that all machines share" in found["each its own"]
    assert not list((folder / "out").glob("export=*"))


def test_a_pipeline_shares_nothing_with_its_executors_but_the_stores(
    cluster: StandaloneCluster, tmp_path: Path, stores_of: Any
) -> None:
    """
    Its configuration lies with the driver alone, all of them work in folders of their own, and an executor is killed.

    SIGTERM ends it between two batches; every row is there once, in both topics of its one transaction.
    """
    values = [f"value {number}" for number in range(80)]
    with fresh_database() as url:
        stores = stores_of(tmp_path, url)
        stores.create("in", "out", "copies")
        stores.publish(values[:40])
        folder = tmp_path / "driver"
        folder.mkdir()
        config = folder / "txnframework.toml"
        config.write_text(f'[metadata]\nurl = "{url}"\n', encoding="utf-8")
        (folder / "pipeline.toml").write_text(cluster.copying_pipeline(20), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("txnframework")), "pipeline", "run"]
        with (tmp_path / "log").open("wb") as log:
            running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder)
            try:
                wait_for(lambda: len(stores.rows("out")) >= 20 or running.poll() is not None)
                assert running.poll() is None, (tmp_path / "log").read_text()
                # On one machine an executor could read it where it lies; on another one it could not.
                config.rename(folder / "elsewhere.toml")
                os.kill(cluster.executors()[0], signal.SIGKILL)
                stores.publish(values[40:])
                wait_for(lambda: len(stores.rows("out")) == len(values) or running.poll() is not None)
                assert running.poll() is None, (tmp_path / "log").read_text()
                (folder / "elsewhere.toml").rename(config)
            finally:
                running.terminate()
                said, _ = running.communicate()
        assert running.returncode == 0, said
        assert "Stopped after" in said
        expected = Counter(values)
        assert Counter(row.value for row in stores.rows("out")) == expected
        assert Counter(row.value for row in stores.rows("copies")) == expected
        by_transaction = [{row.txn: row.value for row in stores.rows(topic)}.keys() for topic in ("out", "copies")]
        assert by_transaction[0] == by_transaction[1]


def test_nothing_outlives_it(cluster: StandaloneCluster) -> None:
    """Neither workers nor master; it may be stopped twice."""
    pids = cluster.worker_pids
    cluster.stop()
    assert cluster.worker_pids == ()
    assert not any(list_processes(pid) for pid in pids)
