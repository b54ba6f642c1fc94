"""A process in miniature: stores, a coordinator, a buffer, a subscription, as a host would put them together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zope.interface import implementer

from txnframework.config import TransactionsSection
from txnframework.errors import Unavailable
from txnframework.interfaces import (
    IAtomicBatchStore,
    ILedgerStore,
    IManagedLedger,
    IMetadataStore,
    IParticipants,
    IPendingAckStore,
    ITransactionBuffer,
    ITransactionCoordinator,
)
from txnframework.model import Participant, Transaction
from txnframework.plugin import CoordinatorContext, Provider, SegmentContext, SubscriptionContext
from txnframework.testing.clock import VirtualEnvironment
from txnframework.testing.cursors import SuiteCursor
from txnframework.testing.harness import Belonging, Harness
from txnframework.testing.line import Line, wired

TOPIC = "topic://public/default/suite"
SEGMENT = "segment://public/default/suite/0000-ffff-0"
SUBSCRIPTION = "suite"
OTHER_SUBSCRIPTION = "suite-2"
"""The first one's name is the beginning of this one's: their records must stay apart all the same."""

PendingAckProvider = Provider[SubscriptionContext, IPendingAckStore]


@dataclass(eq=False)
class Subscription:
    """What one process has open of one subscription on the segment."""

    cursor: SuiteCursor
    acks: IPendingAckStore


@dataclass(eq=False)
class World:
    """What one process has open of one segment; every step to its stores goes over ``line``."""

    store: IMetadataStore
    ledgers: ILedgerStore
    ledger: IManagedLedger
    coordinator: ITransactionCoordinator
    buffer: ITransactionBuffer
    participants: OneSegment
    line: Line

    @property
    def cursor(self) -> SuiteCursor:
        """The cursor of the subscription that most tests use."""
        return self.participants.subscriptions[SUBSCRIPTION].cursor

    @property
    def acks(self) -> IPendingAckStore:
        """The pending acknowledgments of the subscription that most tests use."""
        return self.participants.subscriptions[SUBSCRIPTION].acks


@implementer(IParticipants)
class OneSegment:
    """Participants of a process that has one segment open; ``out_of_reach`` are those that cannot be settled now."""

    def __init__(self) -> None:
        self.buffer: ITransactionBuffer | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.out_of_reach: set[Participant] = set()

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        """Settle at the buffer or at a subscription; everything else is out of reach."""
        subscription = self.subscriptions.get(participant.subscription)
        if self.buffer is None or participant.segment != self.buffer.segment or participant in self.out_of_reach:
            raise Unavailable(f"{participant} is not open here")
        if not participant.subscription:
            await self.buffer.settle(ended)
        elif subscription is not None:
            await subscription.acks.settle(ended)
        else:
            raise Unavailable(f"{participant} is not open here")


_ROUNDS_MAX = 20
"""How often what one store leads to in the other is waited for: what goes on for ever must not hold up a test."""


class WorldHarness(Harness[World]):
    """
    Opens processes over one metadata store and one ledger store; each ``open`` is another process.

    Subclass it and name the stores' harnesses and the providers of coordinator and buffer, and of the pending-ack store
    where there is one; ``options`` of the providers stay at their defaults. ``without`` names promises of the metadata
    store to keep from them, such as ``IAtomicBatchStore``, so that they take the way that they have for other stores.
    """

    stores: ClassVar[type[Harness[IMetadataStore]]]
    ledgers: ClassVar[type[Harness[ILedgerStore]]]
    coordinator: ClassVar[Provider[CoordinatorContext, ITransactionCoordinator]]
    buffer: ClassVar[Provider[SegmentContext, ITransactionBuffer]]
    pending_acks: ClassVar[PendingAckProvider | None] = None
    transactions: ClassVar[TransactionsSection] = TransactionsSection()
    without: ClassVar[tuple[type[IAtomicBatchStore], ...]] = ()
    segment: ClassVar[str] = SEGMENT

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._stores = self.stores(_made(directory / "metadata"), self.environment)
        self._ledgers = self.ledgers(_made(directory / "ledgers"), self.environment)
        self._lines: list[Line] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[World]:
        """Open one process; what it opened is closed in the reverse order."""
        async with AsyncExitStack() as stack:
            line = Line()
            self._lines.append(line)
            stack.callback(self._lines.remove, line)
            store = wired(await stack.enter_async_context(self._stores.open()), line, self.without)
            opening = (
                self._ledgers.open_as(store.identity) if isinstance(self._ledgers, Belonging) else self._ledgers.open()
            )
            ledgers = wired(await stack.enter_async_context(opening), line)
            ledger = await ledgers.create(self.segment)
            stack.push_async_callback(ledger.close)
            participants = OneSegment()
            environment, transactions = self.environment, self.transactions
            coordinator = await self.coordinator.open(
                CoordinatorContext(store, ledgers, participants, environment, transactions=transactions)
            )
            stack.push_async_callback(coordinator.close)
            buffer = await self.buffer.open(
                SegmentContext(
                    self.segment, ledger, ledgers, store, coordinator, environment, transactions=transactions
                )
            )
            stack.push_async_callback(buffer.close)
            participants.buffer = buffer
            world = World(store, ledgers, ledger, coordinator, buffer, participants, line)
            if self.pending_acks is not None:
                for name in (SUBSCRIPTION, OTHER_SUBSCRIPTION):
                    subscription = await self._subscribe(self.pending_acks, world, name)
                    stack.push_async_callback(subscription.acks.close)
                    participants.subscriptions[name] = subscription
            # However the test left the line, closing goes over it.
            stack.callback(line.restore)
            yield world

    async def _subscribe(self, provider: PendingAckProvider, world: World, name: str) -> Subscription:
        cursor = SuiteCursor(world.store, self.segment, name)
        context = SubscriptionContext(
            TOPIC,
            self.segment,
            name,
            cursor,
            world.ledgers,
            world.store,
            world.coordinator,
            self.environment,
            transactions=self.transactions,
        )
        return Subscription(cursor, await provider.open(context))

    async def settle(self) -> None:
        """Wait for what either store does late, and for what that leads to in the other one."""
        for _ in range(_ROUNDS_MAX):
            asked = self._asked()
            await self._stores.settle()
            await self._ledgers.settle()
            if self._asked() == asked:
                return

    async def pass_time(self, by_ms: int) -> None:
        """Let time pass for everything that was opened."""
        await self._stores.pass_time(by_ms)

    async def destroy(self) -> None:
        """Remove both stores' data."""
        await self._stores.destroy()
        await self._ledgers.destroy()

    def _asked(self) -> int:
        return sum(line.asked for line in self._lines)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
