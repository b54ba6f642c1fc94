"""Rules of buffers between which a sealed segment changes hands when its topic migrates to another family."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

from txnframework.interfaces import IAdoptingBuffer, ISealableBuffer
from txnframework.model import BRANCH_BITS, Append, Branch, Expect, Isolation, Put, TxnID, Visibility
from txnframework.model.entries import encode_entry
from txnframework.model.entry_view import EntryMessage
from txnframework.model.ids import LOG_FAMILY, LOG_FAMILY_BIT
from txnframework.model.indexes import abort_indexes
from txnframework.model.layout import to_record
from txnframework.model.layout_changes import create_layout
from txnframework.model.migration_changes import decided, planned
from txnframework.model.names import TopicName, topic_of
from txnframework.model.paths import abort_record_key, abort_record_of, abort_records_range, topic_key
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import AbortRecord, encode
from txnframework.plugin import SegmentContext
from txnframework.testing._suites._buffer._case import (
    BufferRules,
    abort,
    begin,
    commit,
    entry,
    pages,
    send,
    texts_of,
    visible,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.world import World, WorldHarness

KEPT, DROPPED = TxnID(LOG_FAMILY_BIT, 1), TxnID(LOG_FAMILY_BIT, 2)


class AdoptionRules(BufferRules):
    """What one family decides before it gives a segment away, another family reads from abort records."""

    @requires(ISealableBuffer)
    async def test_settled_after_the_seal(self) -> None:
        """
        During a migration, transactions end although the segment is sealed.

        Each branch that does not count has an abort record in each ledger with its entries; others have none.
        """
        async with self.data.open() as world, self.data.open() as other:
            kept, dropped, in_part = await begin(world), await begin(world), await begin(world)
            await send(world, "kept", kept)
            expected = {
                (await send(world, "dropped", dropped)).ledger_id: {Branch(dropped)},
            }
            await send(world, "counts", in_part)
            await world.ledger.roll()
            for txn, branch in ((dropped, 0), (in_part, 5)):
                at = await send(other, "later", txn, branch)
                expected.setdefault(at.ledger_id, set()).add(Branch(txn, branch))
            await _decide_migration(world)
            await world.ledger.seal()
            ended = [await commit(world, kept), await abort(other, dropped), await commit(world, in_part)]
            for process in (world, other):
                for one in ended:
                    await process.buffer.settle(one)
            found: dict[int, set[Branch]] = {}
            for record in (await world.store.scan(abort_records_range(world.buffer.segment), 100)).records:
                _, ledger_id, txn_id, number = abort_record_of(record.key.path)
                found.setdefault(ledger_id, set()).add(Branch(txn_id, number))
            assert all(branches <= found.get(ledger_id, set()) for ledger_id, branches in expected.items())
            assert {branch for some in found.values() for branch in some} == {Branch(dropped), Branch(in_part, 5)}

    @requires(IAdoptingBuffer)
    async def test_outcomes_of_another_family(self) -> None:
        """Branches of the other family count unless they have abort records, in the ledgers that these name."""
        async with self.data.open() as world, self._adopted(world) as adopted:
            assert await visible(adopted) == ["plain", "kept", "last"]
            outcomes = {
                text: one.visibility
                for page in await pages(adopted, isolation=Isolation.READ_UNCOMMITTED)
                for one in page.entries
                for text in texts_of(one)
            }
            assert {text for text, seen in outcomes.items() if seen is Visibility.ABORTED} == {
                "dropped",
                "lost",
                "late",
            }
            assert await adopted.buffer.resolve(Branch(KEPT)) is Visibility.COMMITTED
            assert await adopted.buffer.resolve(Branch(DROPPED)) is Visibility.ABORTED

    @requires(IAdoptingBuffer)
    async def test_control_entries_of_another_family(self) -> None:
        """Control entries of the other family are never returned, and reading makes progress past them."""
        async with self.data.open() as world, self._adopted(world) as adopted:
            end = (await world.ledger.tail()).last_confirmed
            for isolation in Isolation:
                found = await pages(adopted, EARLIEST, isolation)
                assert found[-1].upto >= end
                assert not [
                    text for page in found for one in page.entries for text in texts_of(one) if text == "control"
                ]

    @asynccontextmanager
    async def _adopted(self, world: World) -> AsyncIterator[World]:
        """Yield a process whose buffer serves a segment that another family wrote and sealed."""
        aborted: set[tuple[int, Branch]] = set()
        for text, branch in (
            ("plain", None),
            ("kept", Branch(KEPT)),
            ("dropped", Branch(DROPPED)),
            ("control", Branch(DROPPED, 1 << BRANCH_BITS)),
            ("lost", Branch(KEPT, 5)),
            ("", None),
            ("late", Branch(DROPPED)),
            ("last", None),
            ("control", Branch(KEPT, 1 << BRANCH_BITS)),
        ):
            if not text:
                await world.ledger.roll()
                continue
            ledger_id = (await world.ledger.tail()).open_ledger_id
            await world.ledger.append((_raw_entry(text, branch),), ledger_id)
            if branch is not None and (branch.txn_id == DROPPED or branch.number) and text != "control":
                aborted.add((ledger_id, branch))
        await world.ledger.seal()
        segment = world.buffer.segment
        for ledger_id, branch in sorted(aborted, key=lambda one: (one[0], one[1].txn_id.number, one[1].number)):
            record = AbortRecord(after=str(Position(ledger_id, -1)))
            key = abort_record_key(segment, ledger_id, branch.txn_id, branch.number)
            await world.store.put(Put(key, encode(record), Expect.ANY, abort_indexes(segment, ledger_id, record)))
        context = SegmentContext(
            segment,
            world.ledger,
            world.ledgers,
            world.store,
            world.coordinator,
            self.data.environment,
            settled_families=(LOG_FAMILY,),
        )
        buffer = await cast(type[WorldHarness], self.harness).buffer.open(context)
        try:
            await buffer.recover()
            yield replace(world, buffer=buffer)
        finally:
            await buffer.close()


def _raw_entry(text: str, branch: Branch | None) -> Append:
    if branch is None or not branch.is_control:
        return entry(text, branch)
    data = encode_entry([EntryMessage(None, text.encode(), (), 0, 0)], "control", branch)
    return Append(data, 0, Branch(branch.txn_id))


async def _decide_migration(world: World) -> None:
    """Write the topic's record with a decided migration, as the broker does before it seals the segment."""
    topic = topic_of(world.buffer.segment)
    to = TopicName("topic", topic.tenant, topic.namespace, "adopted")
    layout = decided(planned(create_layout(topic, 1, None), to, 0), EARLIEST)
    await world.store.put(Put(topic_key(topic), encode(to_record(layout)), Expect.ANY))
