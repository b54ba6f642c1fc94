"""A minimal process for the suites: stores, a coordinator, a buffer and subscriptions, wired as a host wires them."""

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
"""Its name starts with the name of the first one; their records must stay separate."""

PendingAckProvider = Provider[SubscriptionContext, IPendingAckStore]


@dataclass(eq=False)
class Subscription:
    """What one process has open for one subscription on the segment."""

    cursor: SuiteCursor
    acks: IPendingAckStore


@dataclass(eq=False)
class World:
    """What one process has open for one segment; every call to its stores passes through ``line``."""

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
    """The participants of a process with one open segment; those in ``out_of_reach`` cannot be settled."""

    def __init__(self) -> None:
        self.buffer: ITransactionBuffer | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.out_of_reach: set[Participant] = set()

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        """
        Settle at the buffer or at a subscription.

        :raises Unavailable: the participant is not open in this process, or is in ``out_of_reach``.
        """
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
"""The limit of ``settle`` rounds, so that work that never ends cannot block a test."""


class WorldHarness(Harness[World]):
    """
    Opens processes over one metadata store and one ledger store; each ``open`` is another process.

    Subclass it and set the harnesses of the stores and the providers of the coordinator and the buffer; a pending-ack
    provider is optional. The providers run with default ``options``. ``without`` names interfaces of the metadata store
    to hide, such as ``IAtomicBatchStore``, so that the providers run as they do on stores without them.
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
        """Open one process; its parts are closed in reverse order."""
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
            # Closing uses the line, so it is restored first, whatever the test did to it.
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
        """Wait for delayed work of both stores, and for the work that it causes in the other store."""
        for _ in range(_ROUNDS_MAX):
            asked = self._asked()
            await self._stores.settle()
            await self._ledgers.settle()
            if self._asked() == asked:
                return

    async def pass_time(self, by_ms: int) -> None:
        """Advance the clock of everything that was opened."""
        await self._stores.pass_time(by_ms)

    async def destroy(self) -> None:
        """Remove the data of both stores."""
        await self._stores.destroy()
        await self._ledgers.destroy()

    def _asked(self) -> int:
        return sum(line.asked for line in self._lines)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
