"""
Prove a pipeline on a standalone cluster over NATS: ``python bench/spark/nats_cluster.py``.

Three NATS servers hold the metadata and the messages. A master and two workers of Spark run a pipeline from one topic
to two others. Meanwhile are killed: an executor, the NATS server that leads the records, the driver, and a worker with
everything on it. Each of them is started again, the driver from its checkpoint. At the end every row must be in both
topics once, and each of its transactions must have the same rows in both. The exit status is 1 otherwise.

Needs ``txnframework-nats[testing]``, ``txnframework-spark``, and Java 17 or later.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from txnframework_nats.testing.servers.nats import Nats
from txnframework_spark.testing.cluster import StandaloneCluster
from txnframework_spark.testing.stores import Stores

WAIT_S = 600
TOPICS = ("out", "copies")
# A busy machine starts a Python process slowly.
CONF = {"spark.python.authenticate.socketTimeout": "300s"}


class Driver:
    """The driver of the pipeline, with everything that it starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = (folder / "log").open("ab")
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the pipeline, from its checkpoint if it has one."""
        command = [str(Path(sys.executable).with_name("txnframework")), "pipeline", "run"]
        self._running = subprocess.Popen(
            command, cwd=self._folder, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def kill(self) -> None:
        """Kill it and everything that it started, as a failure of its machine does."""
        if self._running is not None and self._running.poll() is None:
            # It is the first process of its group.
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
        self._running = None

    def stop(self) -> int:
        """Let it end between two batches; return its exit status."""
        assert self._running is not None
        self._running.terminate()
        status, self._running = self._running.wait(WAIT_S), None
        return status

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Return when a condition holds; it fails if the driver has ended or nothing happens."""
        until, begun = time.monotonic() + WAIT_S, time.monotonic()
        while not condition():
            ended = self._running is None or self._running.poll() is not None
            if ended or time.monotonic() > until:
                raise SystemExit(f"{what}: not reached; {self._folder / 'log'}:\n{self.last_words()}")
            time.sleep(0.2)
        print(f"{what}: after {time.monotonic() - begun:.0f} s", flush=True)

    def last_words(self) -> str:
        """Return the end of the log."""
        return "\n".join((self._folder / "log").read_text(errors="replace").splitlines()[-30:])


@contextmanager
def driver(directory: Path, url: str, cluster: StandaloneCluster) -> Iterator[Driver]:
    """Write the files of the pipeline; its driver is killed at the end of the block if it still runs."""
    folder = directory / "driver"
    folder.mkdir()
    (folder / "txnframework.toml").write_text(f'[metadata]\nurl = "{url}"\n\n[ledger]\nurl = "{url}"\n')
    (folder / "pipeline.toml").write_text(cluster.copying_pipeline(40, CONF))
    made = Driver(folder)
    try:
        yield made
    finally:
        made.kill()


def run(directory: Path, rows: int) -> bool:
    """Run the pipeline and the kills; return whether every row is there once."""
    values = [f"value {number}" for number in range(rows)]
    quarter = rows // 4
    with Nats(directory / "nats", servers=3) as nats, StandaloneCluster(directory / "cluster") as cluster:
        url = f"nats://{nats.hosts}/pipeline"
        stores = Stores(directory, url)
        stores.create("in", *TOPICS)
        with driver(directory, url, cluster) as pipeline:

            def has(count: int) -> Callable[[], bool]:
                return lambda: len(stores.rows("out")) >= count

            pipeline.start()
            stores.publish(values[:quarter])
            pipeline.wait_for("first rows", has(1))
            os.kill(cluster.executors()[0], signal.SIGKILL)
            stores.publish(values[quarter : 2 * quarter])
            pipeline.wait_for("a quarter, with an executor killed", has(quarter + 1))
            leader = nats.leader_of("pipeline-records")
            leader.kill()
            stores.publish(values[2 * quarter : 3 * quarter])
            pipeline.wait_for("half, with a NATS server killed", has(2 * quarter + 1))
            pipeline.kill()
            leader.start()
            nats.wait_until_serving()
            pipeline.start()
            stores.publish(values[3 * quarter :])
            pipeline.wait_for("three quarters, with the driver killed", has(3 * quarter + 1))
            cluster.kill_worker(cluster.worker_pids[0])
            cluster.start_worker()
            pipeline.wait_for("all rows, with a worker killed", has(rows))
            status = pipeline.stop()
        found = {topic: stores.rows(topic) for topic in TOPICS}
    transactions = [{row.txn for row in found[topic]} for topic in TOPICS]
    exactly_once = all(Counter(row.value for row in found[topic]) == Counter(values) for topic in TOPICS)
    together = transactions[0] == transactions[1]
    print(f"{rows} rows, {len(transactions[0])} transactions; rows: {[len(found[topic]) for topic in TOPICS]}")
    print(f"every row once: {exactly_once}; the same transactions: {together}; the driver ended with {status}")
    return exactly_once and together and status == 0


def main() -> None:
    """Run in a temporary directory, or in one that is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--directory", type=Path, help="an empty directory for all files, which are kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(0 if run((arguments.directory or Path(scratch)).resolve(), arguments.rows) else 1)


if __name__ == "__main__":
    main()
