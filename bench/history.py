"""A database with a long history, created in bulk in the state that the real code leaves."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from backends import SqlBackend
from measurement import opened

from txnframework import Client
from txnframework.model import Append, Branch, Expect, Put, TopicName, TxnID
from txnframework.model.entries import encode_entry
from txnframework.model.entry_view import EntryMessage
from txnframework.model.indexes import abort_indexes
from txnframework.model.paths import abort_record_key, header_key
from txnframework.model.records import AbortRecord, TransactionHeader, encode
from txnframework.model.transactions import State
from txnframework_metadata.records.headers import header_indexes

TOPIC = "t"
T = TypeVar("T")
REAL = 10
"""The number of transactions of each kind that really run; the bulk ones must have the same records."""
APPENDS_TOGETHER = 500
PUTS_TOGETHER = 512


@dataclass(frozen=True, slots=True)
class History:
    """``finished`` settled transactions of one entry each; with ``collected``, their headers are deleted too."""

    finished: int
    collected: bool = False
    aborted_every: int | None = None

    def aborts(self, number: int) -> bool:
        return self.aborted_every is not None and number % self.aborted_every == 0


async def make_history(backend: SqlBackend, database: str, history: History) -> str:
    """Create the database and return its segment's name. Raise if a record differs in shape from a real one."""
    reserve = {"metadata": {"id_block_size": history.finished + 1_000}}
    async with opened(backend.config(database), coordinators=reserve) as client:
        await client.create_topic(TOPIC)
        segment = await run_really(client, history)
        real = await shapes(backend, database)
        await write_in_bulk(client, segment, history)
    if (made := await shapes(backend, database)) - real:
        raise AssertionError(f"bulk records have shapes that real ones have not: {made - real}")
    if history.collected:
        # The sweep does the same after the retention time, with one commit for each transaction.
        for table in ("records", "index_entries"):
            await backend.rows(database, f"DELETE FROM {table} WHERE path LIKE '/txn/%'")
    return segment


async def shapes(backend: SqlBackend, database: str) -> set[str]:
    """Return the kinds of records in a database: key, indexes and value, without their variable parts."""
    rows = await backend.rows(database, "SELECT path, partition, indexes, value FROM records WHERE path LIKE '/txn%'")
    return {_shape(*row) for row in rows}


def _shape(path: str, partition: str, indexes: str | None, value: bytes) -> str:
    document = json.loads(value)
    fields = {name: content if name == "state" else type(content).__name__ for name, content in document.items()}
    names = [name for name, _ in json.loads(indexes or "[]")]
    key = re.sub(r"[0-9a-f]{32}|\d{20}", "#", f"{path} in {partition}")
    return f"{key} {names} {json.dumps(fields, sort_keys=True)}"


async def run_really(client: Client, history: History) -> str:
    """Run and settle a few transactions of each kind; return the segment that they wrote to."""
    async with await client.producer(TOPIC) as producer:
        for aborts in (False, True) if history.aborted_every else (False,):
            for _ in range(REAL):
                txn = client.transaction()
                await txn.begin()
                await producer.send(b"x" * 100, txn=txn)
                await (txn.abort() if aborts else txn.commit())
                await (await client.host.coordinator()).settle(txn.id)
    layout = await client.topics.layout(TopicName.parse(TOPIC))
    return str(layout.name_of(layout.active()[0].id))


async def write_in_bulk(client: Client, segment: str, history: History) -> None:
    """Append the entries and put the headers and abort records, without the steps that leave no records."""
    async with client.transaction() as last_real:
        first = last_real.id.number + 1
    count = history.finished - REAL
    ids = [TxnID(last_real.id.coordinator, number) for number in range(first, first + count)]
    opened_segment = await client.host.segment(segment)
    now_ms = client.host.environment.now_ms()
    session = await client.host.sessions.own()
    puts: list[Put] = []
    for numbered in _chunks(enumerate(ids), APPENDS_TOGETHER):
        entries = []
        for number, txn_id in numbered:
            message = EntryMessage(None, b"x" * 100, (), number, now_ms)
            entries.append(Append(encode_entry([message], "bulk", Branch(txn_id)), 1, Branch(txn_id)))
        open_ledger_id = (await opened_segment.ledger.tail()).open_ledger_id
        appended = await opened_segment.ledger.append(tuple(entries), open_ledger_id)
        for (number, txn_id), place in zip(numbered, appended, strict=True):
            aborts = history.aborts(number)
            header = TransactionHeader(
                state=(State.ABORTED if aborts else State.COMMITTED).value,
                timeout_ms=now_ms + 60_000,
                created_ms=now_ms,
                finalized_ms=now_ms + 5,
                principal="",
                session=session,
                branches=None if aborts else [0],
            )
            puts.append(Put(header_key(txn_id), encode(header), Expect.ABSENT, header_indexes(txn_id, header)))
            if aborts:
                at = place.position
                record = AbortRecord(after=f"{at.ledger_id}:{at.entry_id - 1}")
                key, indexes = (
                    abort_record_key(segment, at.ledger_id, txn_id, 0),
                    abort_indexes(segment, at.ledger_id, record),
                )
                puts.append(Put(key, encode(record), Expect.ABSENT, indexes))
    for some in _chunks(puts, PUTS_TOGETHER):
        await asyncio.gather(*(client.host.metadata.put(put) for put in some))


def _chunks(items: Iterable[T], size: int) -> Iterable[list[T]]:
    left = iter(items)
    while some := list(itertools.islice(left, size)):
        yield some
