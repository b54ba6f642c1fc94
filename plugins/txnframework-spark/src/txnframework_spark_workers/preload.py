"""Imports of the modules that workers need, before the workers are forked."""

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


def preload_modules() -> None:
    """
    Import Spark's worker modules, this format and all plugins.

    Nothing is opened or started. An import that fails here fails again in the worker that needs it, which reports it.
    """
    for name in _WORKER_MODULES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        from txnframework_spark import datasource, process  # noqa: F401 - for its import

        process.installed_plugins()
    with contextlib.suppress(Exception):
        import pyarrow as pa

        # The first conversion of a Python object imports pandas, which takes longer than a small task.
        pa.scalar(None)
    os.register_at_fork(after_in_child=_reseed)
    gc.collect()
    # Spark makes every worker collect garbage after each task. Over all imported objects that takes tenths of a second.
    gc.freeze()


def _reseed() -> None:
    """Reseed numpy in each worker, because numpy was imported before the fork; Python reseeds its own."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
