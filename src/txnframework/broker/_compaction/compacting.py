"""Compaction: a copy of a segment's messages that holds only those that somebody decided to keep."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace

from txnframework.broker._compaction.attempts import Attempt, Attempts, Kept
from txnframework.broker._compaction.compactors import Compactor, DecidedMessage
from txnframework.broker._compaction.copying import CopyPlan, plan_copies
from txnframework.broker._compaction.decided import (
    CommitTimes,
    Order,
    compacted_entries,
    in_order_of_commits,
    in_order_of_positions,
    readable_end,
)
from txnframework.broker._serving.segments import OpenSegment
from txnframework.environment import Environment
from txnframework.errors import Fenced, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IMetadataStore, ITransactionCoordinator
from txnframework.model.compacted import CompactedEntry, encode_compacted
from txnframework.model.layout import Layout
from txnframework.model.positions import EARLIEST, Position

Visit = Callable[[str], AbstractAsyncContextManager[OpenSegment]]
Entries = AsyncGenerator[CompactedEntry, None]
Source = Callable[[], Entries]


class Compacting:
    """
    Writes what is kept of a segment to a ledger of its own, as one of ``attempts``.

    Who spreads the copying over several processes begins and finishes an attempt there too, writes several ledgers
    between the two, and asks here for what both have to know alike: up to where, and in which order.
    """

    def __init__(
        self,
        store: IMetadataStore,
        ledgers: ILedgerStore,
        visit: Visit,
        coordinator: Callable[[str], Awaitable[ITransactionCoordinator | None]],
        environment: Environment,
    ) -> None:
        self.attempts = Attempts(store, ledgers, environment)
        self._ledgers = ledgers
        self._visit = visit
        self._coordinator = coordinator

    async def compact(self, layout: Layout, compactor: Callable[[], Compactor], order: Order) -> None:
        """
        Compact every segment up to what may be read now; one compactor decides about each.

        In the order of positions it goes on from what an earlier compaction kept, in the order of commits it begins
        anew.

        :raises CommitOrderUnknown: the messages cannot be put in the order of their commits any more.
        :raises Fenced: another compaction of a segment began later.
        """
        for segment_id in layout.made():
            async with self._visit(str(layout.name_of(segment_id))) as opened:
                await self._compact(opened, compactor(), order)

    async def commit_times(self, segment: str) -> CommitTimes:
        """Return what tells when the transactions of a segment's entries were committed."""
        return CommitTimes(segment, await self._coordinator(segment))

    async def plan(self, segment: str, earlier: Kept | None, order: Order, messages_max: int) -> CopyPlan:
        """Plan what several processes copy of a segment; ``plan_copies`` says how."""
        async with self._visit(segment) as opened:
            return await plan_copies(opened, self._ledgers, earlier, order, messages_max)

    async def _compact(self, opened: OpenSegment, compactor: Compactor, order: Order) -> None:
        attempt = await self.attempts.begin(opened.name)
        earlier = attempt.earlier
        upto = await readable_end(opened, EARLIEST if earlier is None else earlier.upto)
        try:
            async with self._source(opened, earlier, upto, order) as source:
                made = await self._write(attempt, source, compactor)
        except LedgerNotFound as error:
            if error.name == opened.name:
                raise
            raise Fenced(
                f"compaction of {opened.name}"
            ) from error  # a later attempt has finished: what was kept is gone
        await self.attempts.finish(attempt, Kept((made,), upto, compactor.name, order))

    @contextlib.asynccontextmanager
    async def _source(
        self, opened: OpenSegment, earlier: Kept | None, upto: Position, order: Order
    ) -> AsyncIterator[Source]:
        """Give what there is to decide about, as often as it is asked for."""
        if order == "commit":
            times = await self.commit_times(opened.name)
            yield lambda: in_order_of_commits(opened, upto, times)
            return
        if earlier is None:
            yield lambda: in_order_of_positions(opened, EARLIEST, upto)
            return
        ledgers = [await self._ledgers.open(name) for name in earlier.ledgers]

        async def both() -> Entries:
            for ledger in ledgers:
                async for entry in compacted_entries(ledger):
                    yield entry
            async for entry in in_order_of_positions(opened, earlier.upto, upto):
                yield entry

        try:
            yield both
        finally:
            for ledger in ledgers:
                await ledger.close()

    async def _write(self, attempt: Attempt, source: Source, compactor: Compactor) -> str:
        """Show every message to the compactor, then write what it keeps; return the ledger."""
        async with aclosing(source()) as entries:
            async for entry in entries:
                for message in _messages_of(entry):
                    compactor.look(message)
        async with self.attempts.writing(attempt) as writer, aclosing(source()) as entries:
            async for entry in entries:
                chosen = [compactor.keeps(message) for message in _messages_of(entry)]
                kept = tuple(one for one, stays in zip(entry.messages, chosen, strict=True) if stays)
                if kept:
                    await writer.add(encode_compacted(replace(entry, messages=kept)), len(kept))
            await writer.seal()
        return writer.name


def _messages_of(entry: CompactedEntry) -> list[DecidedMessage]:
    txn_id = None if entry.branch is None else entry.branch.txn_id
    return [
        DecidedMessage(
            Position(entry.position.ledger_id, entry.position.entry_id, index), message, entry.producer, txn_id
        )
        for index, message in entry.messages
    ]
