"""The writers of a host's logs: with the configured bounds, controlled by switches, and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from txnframework.environment import Environment
from txnframework.interfaces import IManagedLedger
from txnframework_legacy.batching.following import FollowedSwitches, Follower
from txnframework_legacy.batching.metrics import measured
from txnframework_legacy.batching.switches import Scope
from txnframework_legacy.log import BatchedLogWriter, Batching, Flushed

if TYPE_CHECKING:
    from txnframework.metrics import Metrics


class SwitchedLogWriter(BatchedLogWriter):
    """A writer that batches as its log's switch says."""

    def __init__(
        self,
        ledger: IManagedLedger,
        environment: Environment,
        batching: Batching,
        flushed: Callable[[Flushed], None],
        switches: FollowedSwitches,
        log: Scope,
    ) -> None:
        super().__init__(ledger, environment, batching, flushed)
        self._switches = switches
        self._follower = Follower(log, batching.enabled, lambda enabled: self.switch(batching=enabled))

    async def follow(self) -> None:
        """Follow the switches from now on."""
        await self._switches.follow(self._follower)

    async def close(self) -> None:
        """Refuse further records. Idempotent."""
        await self._switches.leave(self._follower)
        await super().close()


class LogWriters:
    """Creates the writers of one kind of log."""

    def __init__(
        self,
        switches: FollowedSwitches,
        environment: Environment,
        batching: Batching,
        metrics: Metrics | None = None,
    ) -> None:
        self._switches = switches
        self._environment = environment
        self._batching = batching
        self._metrics = metrics

    async def open(self, ledger: IManagedLedger, log: Scope) -> SwitchedLogWriter:
        """Return a writer for a log, switched to the current decision. On failure the ledger is closed."""
        flushed = measured(self._metrics, self._switches.kind, log.outer)
        writer = SwitchedLogWriter(ledger, self._environment, self._batching, flushed, self._switches, log)
        try:
            await writer.follow()
        except BaseException:
            await ledger.close()
            raise
        return writer
