"""
Processes from which Spark's Python workers are forked, with all modules imported.

Spark starts a daemon for each kind of worker (planning, reading and writing, committing). The daemon forks a worker on
demand, and each worker imports its modules. That takes most of a second, ten or more times before a query reads its
first row. ``spark.python.daemon.module=txnframework_spark_workers.daemon`` moves the imports:

* A daemon imports all modules first, so that its workers start immediately. The imported objects are excluded from
  garbage collection, which Spark runs after every task of a worker.
* Spark applies that setting to workers of tasks only. It starts the driver's workers by the names of its own modules.
  In a local session, ``txnframework_spark.workers`` gives Spark a program as its interpreter, which starts these too.
* If driver and executors are one process, one *nursery* starts beside the JVM. It has imported all modules when the JVM
  is ready, and daemons are forked from it. A daemon that finds no nursery, or one with other settings, continues alone.
* Spark runs the source of a stream in a process without a daemon: a *runner*, which is forked from the nursery too.

This package is separate from ``txnframework_spark``, whose import is slow; ``daemon`` has to start fast.
"""

from __future__ import annotations

from typing import Final

DAEMON_MODULE: Final = "txnframework_spark_workers.daemon"
"""The value for ``spark.python.daemon.module``."""

RUNNER_MODULE: Final = "txnframework_spark_workers.runner"
"""The module that runs a module of Spark in a process that the nursery forks."""

NURSERY: Final = "TXNFRAMEWORK_SPARK_NURSERY"
"""The environment variable with the path of the nursery's Unix socket, read by daemons."""
