"""Importing what workers need, before they are forked."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from typing import Final

_WORKER_MODULES: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.python_streaming_sink_runner",
)


def import_ahead() -> None:
    """
    Import Spark's worker modules, this format and all plugins.

    Nothing of it is opened or begun. What fails here fails again in the worker that needs it, where somebody is told.
    """
    for name in _WORKER_MODULES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        from txnframework_spark import datasource, process  # noqa: F401 - for its import

        process.installed_plugins()
    os.register_at_fork(after_in_child=_reseed)
    gc.collect()
    # Spark has every worker collect garbage after each task: through all that was imported, tenths of a second.
    gc.freeze()


def _reseed() -> None:
    """Give a worker random numbers of its own, as if it had imported numpy itself; Python's module needs no help."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
