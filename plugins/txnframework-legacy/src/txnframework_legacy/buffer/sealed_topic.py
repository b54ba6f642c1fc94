"""
Outcomes in a sealed topic: it takes no marker, so abort records in the metadata store hold what a marker would say.

A topic is sealed by a migration to the metadata family, whose buffer reads these records. They are stored before a
transaction counts as settled here. Otherwise the coordinator could forget an aborted transaction before the migration
has asked for its outcome, and its entries would count as committed.
"""

from __future__ import annotations

from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import Branch, Expect, Put, Transaction
from txnframework.model.indexes import abort_indexes
from txnframework.model.layout import Layout, from_record
from txnframework.model.names import TopicName
from txnframework.model.paths import abort_record_key, topic_key
from txnframework.model.positions import Position
from txnframework.model.records import AbortRecord, TopicRecord, decode, encode
from txnframework_legacy.buffer.state import OpenTransaction


async def is_migrating(store: IMetadataStore, topic: str) -> bool:
    """Return whether the topic's migration is decided, or done."""
    layout = await _layout(store, topic)
    return layout is not None and (layout.is_migrating or layout.moved_to is not None)


async def has_migrated(store: IMetadataStore, topic: str, life: int) -> bool:
    """Return whether the topic of this life has become another one, or is about to."""
    layout = await _layout(store, topic)
    return layout is not None and (layout.is_migrating or layout.moved_to is not None or layout.life > life)


async def _layout(store: IMetadataStore, topic: str) -> Layout | None:
    name = TopicName.parse(topic)
    record = await store.get(topic_key(name))
    return None if record is None else from_record(name, decode(TopicRecord, record))


async def record_outcome(
    store: IMetadataStore, ledger: IManagedLedger, ended: Transaction, written: OpenTransaction
) -> None:
    """
    Store the abort records of an ended transaction; ``written``: its entries in the sealed topic.

    A branch gets one in each ledger from the transaction's first entry to the branch's last one. Idempotent.
    """
    ledgers = [one.ledger_id for one in await ledger.ledgers(written.first.ledger_id - 1, LEDGERS_MAX)]
    for number, last in written.branches.items():
        if ended.counts(number):
            continue
        for ledger_id in (one for one in ledgers if one <= last.ledger_id):
            branch = Branch(ended.txn_id, number)
            record = AbortRecord(after=str(Position(ledger_id, -1)))
            key = abort_record_key(ledger.name, ledger_id, branch.txn_id, branch.number)
            await store.put(Put(key, encode(record), Expect.ANY, abort_indexes(ledger.name, ledger_id, record)))


LEDGERS_MAX = 100_000
"""More ledgers than one transaction can write to before its timeout."""
