"""Processes of the legacy family in virtual time: coordinators over one space in memory, and their participants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

from zope.interface import implementer

from txnframework.config import TransactionsSection
from txnframework.errors import LedgerNotFound, Unavailable
from txnframework.interfaces import ILedgerStore, IMetadataStore, IParticipants
from txnframework.model import Action, Begin, End, Participant, Position, State, Transaction, TxnID
from txnframework.plugin import CoordinatorContext
from txnframework.testing import VirtualEnvironment
from txnframework.testing.connection import StoreConnection, intercept_calls
from txnframework_legacy.coordinator.coordinator import LogCoordinator
from txnframework_legacy.coordinator.log import log_name
from txnframework_legacy.coordinator.records import AnyRecord, decode
from txnframework_legacy.log import read_records
from txnframework_legacy.options import CoordinatorOptions
from txnframework_memory.space import MemorySpace

TIMEOUT_MS = 60_000
YEAR_MS = 365 * 24 * 3600 * 1000
HERE, THERE = Participant("persistent://a/b/here"), Participant("persistent://a/b/there", "sub")


@implementer(IParticipants)
@dataclass(eq=False)
class Participants:
    """The participants of a coordinator: what each received, which are unavailable, and which were deleted."""

    told: list[tuple[Participant, State]] = field(default_factory=list)
    away: set[Participant] = field(default_factory=set)
    gone: set[Participant] = field(default_factory=set)

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        if participant in self.gone:
            raise LedgerNotFound(participant.segment)
        if participant in self.away:
            raise Unavailable(f"{participant.segment} is away")
        self.told.append((participant, ended.state))


@dataclass(eq=False)
class Process:
    """One process's coordinator, and the line that its steps go over."""

    coordinator: LogCoordinator
    participants: Participants
    ledgers: ILedgerStore
    connection: StoreConnection

    async def begin(self, timeout_ms: int = TIMEOUT_MS, participants: frozenset[Participant] = frozenset()) -> TxnID:
        txn_id = (await self.coordinator.begin(Begin(timeout_ms))).txn_id
        if participants:
            await self.coordinator.enlist(txn_id, participants)
        return txn_id

    async def end(self, txn_id: TxnID, action: Action = Action.COMMIT) -> Transaction:
        return await self.coordinator.end(End(txn_id, action))

    async def records(self, coordinator: int) -> list[AnyRecord]:
        """Return what stands in a coordinator's log."""
        ledger = await self.ledgers.open(log_name(coordinator))
        (first, *_) = await ledger.ledgers(-1, 1)
        upto = (await ledger.tail()).last_confirmed
        start = Position(first.ledger_id, -1)
        return [decode(one, "log") async for page in read_records(ledger, start, upto) for one in page]


class World:
    """One space; every process is another client of it."""

    def __init__(self) -> None:
        self.environment = VirtualEnvironment()
        self.space = MemorySpace(self.environment)
        self.transactions = TransactionsSection(coordinators=1, end_timeout_ms=5_000)

    async def process(self, options: CoordinatorOptions | None = None) -> Process:
        connection = StoreConnection()
        store = intercept_calls(cast(IMetadataStore, await self.space.open_metadata()), connection)
        ledgers = intercept_calls(cast(ILedgerStore, await self.space.open_ledgers()), connection)
        participants = Participants()
        context = CoordinatorContext(
            store, ledgers, participants, self.environment, options, transactions=self.transactions
        )
        return Process(LogCoordinator(context), participants, ledgers, connection)

    def later_ms(self) -> int:
        return self.environment.now_ms() + YEAR_MS


def in_world(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Run a test with a world of its own."""

    async def with_world() -> None:
        async with asyncio.timeout(60):
            await test(World())

    def run() -> None:
        asyncio.run(with_world())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
