"""Health check of a client: whether its stores answer, and how fast."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from txnframework.client._arguments import MILLISECONDS_MAX, whole_number
from txnframework.client._base import ClientOperations, client_closed
from txnframework.config import redact_url
from txnframework.errors import Unavailable
from txnframework.model import paths
from txnframework.runtime.tasks import start_task


@dataclass(frozen=True, slots=True)
class Ping:
    """
    The answer of ``Client.ping``: both stores answered.

    ``metadata_url`` and ``ledger_url`` are the URLs of the stores without passwords. ``metadata_ms`` and ``ledger_ms``
    are the times from the request to the answer, in milliseconds.
    """

    metadata_url: str
    metadata_ms: float
    ledger_url: str
    ledger_ms: float


class HealthOperations(ClientOperations):
    """The health check of ``Client``."""

    async def ping(self, *, timeout_ms: int = 5_000) -> Ping:
        """
        Read from both stores once, at the same time; nothing is written and nothing is tried again.

        A call that is cancelled has no effect.

        :param timeout_ms: how long to wait for the answers of both stores.
        :raises Unavailable: a store does not answer; the error names it and the reason. It is raised after
            ``timeout_ms`` at the latest.
        """
        whole_number(timeout_ms, "timeout_ms", 1, MILLISECONDS_MAX)
        host = self.host
        urls = (redact_url(host.config.metadata.url), redact_url(host.config.ledger.url))
        names = (f"the metadata store {urls[0]}", f"the ledger store {urls[1]}")
        reads = (lambda: host.metadata.get(paths.ids_key(0)), lambda: host.ledgers.list_names("", "", 1))
        # A store may take long to end a cancelled call. So the reads are steps of the host, which their caller leaves.
        steps = tuple(host.steps.begin(partial(_timed_ms, read)) for read in reads)
        for step in steps:
            step.add_done_callback(_read_exception)
        timer = start_task(host.environment.sleep_until(host.environment.now_ms() + timeout_ms))
        try:
            pending: set[asyncio.Task[float] | asyncio.Task[None]] = {*steps}
            while pending and not timer.done():
                _, pending = await asyncio.wait({*pending, timer}, return_when=asyncio.FIRST_COMPLETED)
                pending.discard(timer)
            if any(step.cancelled() for step in steps):
                raise client_closed(host)
            failures = [found for name, step in zip(names, steps, strict=True) if (found := _failure(name, step))]
            if failures:
                raise Unavailable("; ".join(failures))
            return Ping(urls[0], steps[0].result(), urls[1], steps[1].result())
        finally:
            timer.cancel()
            for step in steps:
                step.cancel()


async def _timed_ms(read: Callable[[], Awaitable[object]]) -> float:
    """Return how long a read takes, in milliseconds."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    await read()
    return (clock() - began_s) * 1_000


def _failure(name: str, step: asyncio.Task[float]) -> str | None:
    """Return what is wrong with a store in one clause; None if it answered."""
    if not step.done():
        return f"{name} did not answer in time"
    error = step.exception()
    if error is not None and not isinstance(error, Unavailable):
        raise error
    return None if error is None else f"{name} is unavailable: {error}"


def _read_exception(step: asyncio.Task[float]) -> None:
    """Keep asyncio from reporting the failure of a read that was left."""
    if not step.cancelled():
        step.exception()
