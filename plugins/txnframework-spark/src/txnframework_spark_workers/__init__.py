"""
What Spark's Python workers are forked from, with everything imported that they need.

Spark starts a daemon for each kind of worker (to plan, to read and write, to commit), which forks a worker whenever one
is needed; each worker then imports what it runs, which is most of a second of work, ten or more times before the first
row of a query is read. ``spark.python.daemon.module=txnframework_spark_workers.daemon`` makes it happen before:

* A daemon imports everything first, so that its workers begin at once. What was imported is also taken out of the
  sight of the garbage collector, which Spark calls after every task of a worker.
* Where driver and executors are one process, one *nursery* beside the JVM has imported everything by the time the JVM
  is up, and daemons are forked from it. A daemon that finds no nursery, or one that began under other settings, goes on
  by itself.

Apart from ``txnframework_spark``, because whoever imports that has already paid; ``daemon`` has to begin fast.
"""

from __future__ import annotations

from typing import Final

DAEMON_MODULE: Final = "txnframework_spark_workers.daemon"
"""For ``spark.python.daemon.module``."""

NURSERY: Final = "TXNFRAMEWORK_SPARK_NURSERY"
"""The environment variable that tells daemons at which Unix socket a nursery listens."""
