"""The writers of a host's logs: with the configured bounds, switched as the switches say, measured."""

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
    """A writer that shares entries, or not, as is switched for its log."""

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
        """Be switched from now on."""
        await self._switches.follow(self._follower)

    async def close(self) -> None:
        """Take nothing more; may be repeated."""
        await self._switches.leave(self._follower)
        await super().close()


class LogWriters:
    """Makes the writers of one kind of log."""

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
        """Return the writer of a log, switched as its switch is now; where that fails, the ledger is let go."""
        flushed = measured(self._metrics, self._switches.kind, log.outer)
        writer = SwitchedLogWriter(ledger, self._environment, self._batching, flushed, self._switches, log)
        try:
            await writer.follow()
        except BaseException:
            await ledger.close()
            raise
        return writer
