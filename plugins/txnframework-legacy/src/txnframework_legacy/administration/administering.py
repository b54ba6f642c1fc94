"""Switching the logs of a system, and telling how they stand: over the stores alone, whichever hosts run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework.errors import LedgerNotFound
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework_legacy.administration.standing import Standing, log_names, log_of, opened, standing_of
from txnframework_legacy.batching.switches import (
    Decision,
    LogKind,
    Scope,
    SwitchDocument,
    Switches,
    load_switches,
    put_switch,
)


@dataclass(frozen=True, slots=True)
class LogStatus:
    """Whether a log is written in batches, and what is in it."""

    decision: Decision
    standing: Standing


class Administration:
    """
    The logs of one kind.

    ``configured``: what this process's configuration says of batching; that of each host counts there.
    """

    def __init__(
        self,
        kind: LogKind,
        metadata: IMetadataStore,
        ledgers: ILedgerStore,
        environment: Environment,
        *,
        configured: bool,
    ) -> None:
        self._kind = kind
        self._metadata = metadata
        self._ledgers = ledgers
        self._environment = environment
        self._configured = configured

    async def switch(self, scope: Scope, *, enabled: bool | None) -> None:
        """
        Let the logs of a scope be written in batches, or not; None: leave it to a wider scope, or the configuration.

        The hosts that are running follow within moments.

        :raises OutcomeUnknown: it may be switched; doing it again is safe.
        """
        document = None
        if enabled is not None:
            document = SwitchDocument(enabled=enabled, switched_ms=self._environment.now_ms())
        await put_switch(self._metadata, self._kind, scope, document)

    async def decision(self) -> Decision:
        """Return what holds for a log that nothing narrower is said about."""
        return self._decide(await load_switches(self._metadata, self._kind), Scope())

    async def logs(self, within: Scope) -> AsyncIterator[LogStatus]:
        """Yield the logs within a scope, one after the other, each read from its beginning."""
        switches = await load_switches(self._metadata, self._kind)
        async for name in log_names(self._ledgers, self._kind):
            if not within.covers(log_of(self._kind, name)):
                continue
            standing = await standing_of(self._ledgers, self._environment, self._kind, name)
            if standing is not None:
                yield LogStatus(self._decide(switches, standing.log), standing)

    async def drop_batches(self, within: Scope) -> int:
        """
        Let go of what is batched in logs that are not written in batches any more; return how many such entries stay.

        The open ledger of such a log is closed, so that it can go when nothing in it is needed. Of acknowledgments,
        what is held is first written down once more, by itself. Transactions stay until they are forgotten.
        """
        names = {log_of(self._kind, name): name async for name in log_names(self._ledgers, self._kind)}
        left = 0
        async for found in self.logs(within):
            name, batched = names.get(found.standing.log), found.standing.batched
            if name is not None and batched and not found.decision.enabled:
                batched = await self._shrunk(name)
            left += batched
        return left

    async def _shrunk(self, name: str) -> int:
        try:
            async with opened(self._ledgers, self._environment, self._kind, name) as (_, log):
                await log.shrink(1)
        except LedgerNotFound:
            return 0
        standing = await standing_of(self._ledgers, self._environment, self._kind, name)
        return 0 if standing is None else standing.batched

    def _decide(self, switches: Switches, log: Scope) -> Decision:
        return switches.decide(log, configured=self._configured)
