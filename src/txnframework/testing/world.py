"""A process in miniature: stores, a coordinator and a buffer, as a host would put them together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zope.interface import implementer

from txnframework.errors import Unavailable
from txnframework.interfaces import (
    ILedgerStore,
    IManagedLedger,
    IMetadataStore,
    IParticipants,
    ITransactionBuffer,
    ITransactionCoordinator,
)
from txnframework.model import Participant, Transaction
from txnframework.plugin import CoordinatorContext, Provider, SegmentContext
from txnframework.testing.clock import VirtualEnvironment
from txnframework.testing.harness import Belonging, Harness

SEGMENT = "segment://public/default/suite/0000-ffff-0"


@dataclass(eq=False)
class World:
    """What one process has open of one segment."""

    store: IMetadataStore
    ledgers: ILedgerStore
    ledger: IManagedLedger
    coordinator: ITransactionCoordinator
    buffer: ITransactionBuffer


@implementer(IParticipants)
class OneSegment:
    """Participants of a process that has one segment open, and no subscription."""

    def __init__(self) -> None:
        self.buffer: ITransactionBuffer | None = None

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        """Settle at the buffer; everything else is out of reach."""
        if participant.subscription or self.buffer is None or participant.segment != self.buffer.segment:
            raise Unavailable(f"{participant} is not open here")
        await self.buffer.settle(ended)


class WorldHarness(Harness[World]):
    """
    Opens processes over one metadata store and one ledger store; each ``open`` is another process.

    Subclass it and name the stores' harnesses and the providers of coordinator and buffer; ``options`` of the
    providers stay at their defaults.
    """

    stores: ClassVar[type[Harness[IMetadataStore]]]
    ledgers: ClassVar[type[Harness[ILedgerStore]]]
    coordinator: ClassVar[Provider[CoordinatorContext, ITransactionCoordinator]]
    buffer: ClassVar[Provider[SegmentContext, ITransactionBuffer]]
    segment: ClassVar[str] = SEGMENT

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._stores = self.stores(_made(directory / "metadata"), self.environment)
        self._ledgers = self.ledgers(_made(directory / "ledgers"), self.environment)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[World]:
        """Open one process; what it opened is closed in the reverse order."""
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(self._stores.open())
            opening = (
                self._ledgers.open_as(store.identity) if isinstance(self._ledgers, Belonging) else self._ledgers.open()
            )
            ledgers: ILedgerStore = await stack.enter_async_context(opening)
            ledger = await ledgers.create(self.segment)
            stack.push_async_callback(ledger.close)
            participants = OneSegment()
            coordinator = await self.coordinator.open(
                CoordinatorContext(store, ledgers, participants, self.environment)
            )
            stack.push_async_callback(coordinator.close)
            buffer = await self.buffer.open(
                SegmentContext(self.segment, ledger, ledgers, store, coordinator, self.environment)
            )
            stack.push_async_callback(buffer.close)
            participants.buffer = buffer
            yield World(store, ledgers, ledger, coordinator, buffer)

    async def settle(self) -> None:
        """Wait for what either store does late."""
        await self._stores.settle()
        await self._ledgers.settle()

    async def pass_time(self, by_ms: int) -> None:
        """Let time pass for everything that was opened."""
        await self._stores.pass_time(by_ms)

    async def destroy(self) -> None:
        """Remove both stores' data."""
        await self._stores.destroy()
        await self._ledgers.destroy()


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
