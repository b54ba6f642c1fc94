"""Switching batching of the logs and reporting their status, through the stores alone; it needs no running host."""

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
    """Whether a log is written in batches, and its contents."""

    decision: Decision
    standing: Standing


class Administration:
    """
    Administration of the logs of one kind.

    ``configured`` is whether this process's configuration enables batching. Each host uses its own configuration.
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
        Enable or disable batching for the logs of a scope. None: use the switch of a wider scope, or the configuration.

        Running hosts follow within moments.

        :raises OutcomeUnknown: the switch may be stored; repeating the call is safe.
        """
        document = None
        if enabled is not None:
            document = SwitchDocument(enabled=enabled, switched_ms=self._environment.now_ms())
        await put_switch(self._metadata, self._kind, scope, document)

    async def decision(self) -> Decision:
        """Return the decision for a log without a narrower switch."""
        return self._decide(await load_switches(self._metadata, self._kind), Scope())

    async def logs(self, within: Scope) -> AsyncIterator[LogStatus]:
        """Yield the logs within a scope one by one; each is read from its beginning."""
        switches = await load_switches(self._metadata, self._kind)
        async for name in log_names(self._ledgers, self._kind):
            if not within.covers(log_of(self._kind, name)):
                continue
            standing = await standing_of(self._ledgers, self._environment, self._kind, name)
            if standing is not None:
                yield LogStatus(self._decide(switches, standing.log), standing)

    async def drop_batches(self, within: Scope) -> int:
        """
        Drop batched entries from logs that are no longer written in batches; return how many such entries are left.

        The open ledger of such a log is closed, so that it can be trimmed when none of its records is needed. Held
        acknowledgments are first written again, in an entry of their own. Transactions stay until they are forgotten.
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
