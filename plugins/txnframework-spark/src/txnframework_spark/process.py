"""State of one Python process of Spark: one event loop thread, and one host for each configuration.

Spark forks its workers from a daemon, and reuses them for many tasks. The daemon may have imported all modules (see
``txnframework_spark_workers``). Hosts, connections and threads are created on first use in the process that uses them,
so none of them crosses a fork.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from txnframework.broker import Host, open_host
from txnframework.client.loop_thread import LoopThread
from txnframework.config import load_config
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.plugin import PluginRegistry, load_plugins
from txnframework.runtime.backoff import Backoff
from txnframework_spark.options.parser import StoreOptions

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on this process's loop and return its result; blocks the calling thread."""
    return LoopThread.shared().run(work)


@contextmanager
def enter_context(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter an asynchronous context on this process's loop, around a synchronous block."""
    found = run(context.__aenter__())
    try:
        yield found
    except BaseException as error:
        if not run(context.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        run(context.__aexit__(None, None, None))


def host(stores: StoreOptions, sweep: bool = False) -> Host:
    """
    Return this process's host.

    :param sweep: whether the host also aborts transactions past their deadline; tasks leave that to other processes.
    """
    return _host(stores, sweep, os.getpid())


@cache
def installed_plugins() -> PluginRegistry:
    """Return the installed plugins: classes only, nothing is opened."""
    return load_plugins()


def find_shipped_file(path: str) -> Path | None:
    """Return the file of this name that was shipped with the Spark job (``spark.files``, ``addFile``), if any.

    On a cluster, this is the only way in which executors get a configuration file of the driver.
    """
    from py4j.protocol import Py4JError  # imported late: a host outside of Spark jobs does not need it
    from pyspark import SparkFiles

    try:
        found = Path(SparkFiles.getRootDirectory()) / Path(path).name
    except (AssertionError, Py4JError):
        return None  # no Spark job runs in this process
    return found if found.exists() else None


@cache
def _host(stores: StoreOptions, sweep: bool, pid: int) -> Host:  # noqa: ARG001 - part of the cache key: a forked process has its own host
    shipped = None if stores.config is None else find_shipped_file(stores.config)
    config = load_config(stores.source() if shipped is None else shipped)
    if not sweep:
        quiet = msgspec.structs.replace(config.transactions, sweep=False)
        config = msgspec.structs.replace(config, transactions=quiet)
    return run(open_host(config, installed_plugins()))


async def retry_unavailable(host: Host, operation: Callable[[], Awaitable[T]]) -> T:
    """
    Return the result of ``operation``; retry it while a store is unavailable.

    ``client.retries_max`` and the retry delays of the configuration apply. ``operation`` must be idempotent, because it
    is also retried after OutcomeUnknown.

    :raises Unavailable: a store was unavailable for longer.
    :raises OutcomeUnknown: the last attempt had an unknown outcome.
    """
    bounds = host.config.client
    backoff = Backoff(host.environment, bounds.retry_delay_ms, bounds.retry_delay_ms_max)
    for attempt in range(bounds.retries_max + 1):
        try:
            return await operation()
        except (Unavailable, OutcomeUnknown):
            if attempt == bounds.retries_max:
                raise
        await backoff.pause(attempt + 1)
    raise AssertionError("the last attempt returns or raises")
