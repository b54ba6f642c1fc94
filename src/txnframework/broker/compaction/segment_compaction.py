"""Compaction of one segment into a ledger of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Set
from contextlib import aclosing
from dataclasses import replace

from txnframework.broker.compaction.attempts import Attempt, Attempts, CompactionResult, continued_from
from txnframework.broker.compaction.compactors import Compactor, DecidedMessage
from txnframework.broker.compaction.copies import CopyPlan, plan_copies
from txnframework.broker.compaction.messages import (
    CommitTimes,
    Order,
    compacted_entries,
    in_order_of_commits,
    in_order_of_positions,
    readable_end,
)
from txnframework.broker.segments import OpenSegment, SegmentVisit
from txnframework.environment import Environment
from txnframework.errors import Fenced, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IMetadataStore, ITransactionCoordinator
from txnframework.model.compacted import CompactedEntry, encode_compacted
from txnframework.model.layout import Layout
from txnframework.model.names import TOPIC_DOMAINS, topic_of
from txnframework.model.positions import EARLIEST, Position

Entries = AsyncGenerator[CompactedEntry, None]
Source = Callable[[], Entries]


class SegmentCompaction:
    """
    Writes the compacted messages of a segment to a ledger of its own, as one of ``attempts``.

    A compaction that several processes share begins and finishes its attempt here too, and writes several ledgers in
    between. This class determines the values that all of them must share: the end position and the order.
    """

    def __init__(
        self,
        store: IMetadataStore,
        ledgers: ILedgerStore,
        visit: SegmentVisit,
        coordinator: Callable[[str], Awaitable[ITransactionCoordinator | None]],
        environment: Environment,
    ) -> None:
        self.attempts = Attempts(store, ledgers, environment)
        self._ledgers = ledgers
        self._visit = visit
        self._coordinator = coordinator

    async def compact(self, layout: Layout, compactor: Callable[[], Compactor], order: Order) -> None:
        """
        Compact every segment up to its currently readable end. Each segment has its own compactor.

        In the order of positions, the compaction continues an earlier one in that order. Otherwise it starts over. A
        message that is dropped together with the null that deletes it must not reappear:

        * All attempts begin before anything is read. So no earlier attempt can finish some segments and not others.
        * Parents are finished before their children are read for the last time. A child drops a null only if all its
          ancestors were compacted to their ends in this run, with knowledge of the null. After a crash in between, the
          null is still stored.
        * A compactor that keeps nulls finishes children first. A message that it newly finds in a parent may be
          deleted by a null that another compactor had dropped from the child.

        :raises CommitOrderUnknown: the messages can no longer be sorted by commit time.
        :raises CompactedInOtherOrder: the messages were compacted in the order of commits, and the first ones were
            trimmed.
        :raises Fenced: another compaction of a segment began later.
        """
        made = layout.made()
        attempts = {number: await self.attempts.begin(str(layout.name_of(number))) for number in made}
        ancestors = {number: {one.id for one in layout.ancestors(number)} for number in made}
        drops_nulls = type(compactor()).relate is not Compactor.relate
        deleted: dict[int, Set[bytes]] = dict.fromkeys(made, frozenset())
        for number in made:
            if ancestors[number] and drops_nulls:
                deleted[number] = await self._deleted(attempts[number], compactor(), order)
        whole: set[int] = set()
        for number in made if drops_nulls else reversed(made):
            later = frozenset[bytes]().union(*(deleted[one] for one in deleted if number in ancestors[one]))
            gone = deleted[number] if ancestors[number] and ancestors[number] <= whole else frozenset[bytes]()
            one = compactor()
            if await self._compact(attempts[number], one, order, (later, gone if ancestors[number] else None)):
                whole.add(number)

    async def commit_times(self, segment: str) -> CommitTimes:
        """Return the commit times of a segment's entries."""
        topic = topic_of(segment)
        names = [segment, *(str(replace(topic, domain=domain)) for domain in TOPIC_DOMAINS if domain != topic.domain)]
        found = [await self._coordinator(name) for name in names]
        return CommitTimes(segment, [one for one in found if one is not None])

    async def plan(self, segment: str, earlier: CompactionResult | None, order: Order, messages_max: int) -> CopyPlan:
        """Plan the copies of a segment for several processes; ``plan_copies`` describes the plan."""
        async with self._visit(segment) as opened:
            return await plan_copies(opened, self._ledgers, earlier, order, messages_max)

    async def _deleted(self, attempt: Attempt, compactor: Compactor, order: Order) -> Set[bytes]:
        """Return the keys that a segment deletes."""
        async with self._visit(attempt.segment) as opened, self._reviewed(attempt, opened, compactor, order):
            return compactor.deleted()

    async def _compact(
        self, attempt: Attempt, compactor: Compactor, order: Order, related: tuple[Set[bytes], Set[bytes] | None]
    ) -> bool:
        """Compact a segment; return whether it is sealed and was compacted to its end."""
        async with self._visit(attempt.segment) as opened:
            async with self._reviewed(attempt, opened, compactor, order) as (source, upto):
                compactor.relate(*related)
                made = await self._write(attempt, source, compactor)
            await self.attempts.finish(attempt, CompactionResult((made,), upto, compactor.name, order))
            tail = await opened.ledger.tail()
        return tail.sealed and tail.last_confirmed <= upto

    @contextlib.asynccontextmanager
    async def _reviewed(
        self, attempt: Attempt, opened: OpenSegment, compactor: Compactor, order: Order
    ) -> AsyncIterator[tuple[Source, Position]]:
        """
        Pass every message up to a position to a compactor; yield their source, to read them again, and the position.
        """
        earlier = attempt.earlier
        upto = await readable_end(opened, EARLIEST if earlier is None else earlier.upto)
        try:
            async with self._source(opened, earlier, upto, order) as source:
                async with aclosing(source()) as entries:
                    async for entry in entries:
                        for message in _messages_of(entry):
                            compactor.look(message)
                yield source, upto
        except LedgerNotFound as error:
            if error.name == opened.name:
                raise
            # A later attempt has finished and removed the earlier result.
            raise Fenced(f"compaction of {opened.name}") from error

    @contextlib.asynccontextmanager
    async def _source(
        self, opened: OpenSegment, earlier: CompactionResult | None, upto: Position, order: Order
    ) -> AsyncIterator[Source]:
        """Yield a function that returns the entries to decide about at each call."""
        if order == "commit":
            times = await self.commit_times(opened.name)
            yield lambda: in_order_of_commits(opened, upto, times)
            return
        continued = continued_from(earlier, order)
        if continued is None:
            yield lambda: in_order_of_positions(opened, EARLIEST, upto, whole=earlier is not None)
            return
        ledgers = [await self._ledgers.open(name) for name in continued.ledgers]

        async def both() -> Entries:
            for ledger in ledgers:
                async for entry in compacted_entries(ledger):
                    yield entry
            async for entry in in_order_of_positions(opened, continued.upto, upto):
                yield entry

        try:
            yield both
        finally:
            for ledger in ledgers:
                await ledger.close()

    async def _write(self, attempt: Attempt, source: Source, compactor: Compactor) -> str:
        """Write the messages that a compactor keeps, after it has seen every message; return the ledger's name."""
        async with self.attempts.open_writer(attempt) as writer, aclosing(source()) as entries:
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
