"""An audit of a deployment over NATS: what is planted is found, where it is, and nothing else."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import txnframework
from txnframework.broker import Host
from txnframework.model import paths, records
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ids import Branch, TxnID
from txnframework.model.ledger import Append
from txnframework.model.metadata import Key, Put
from txnframework_nats.testing.servers.nats import shared_hosts
from txnframework_spark import process
from txnframework_spark.jobs.audit.audit import AuditJob
from txnframework_spark.jobs.session import JobProgress
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRAY = TxnID(0, 10**9)


def segment_of(topic: str) -> str:
    return f"segment://public/default/{topic}/0000-ffff-0"


def fill(stores: Any) -> dict[str, TxnID]:
    """Make transactions over two topics, whose records are deleted, one whose record is kept, and a subscription."""
    stores.create("left", "right", "kept", "stray", "gone", segments=1)
    ended: dict[str, TxnID] = {}
    with txnframework.blocking.open({"metadata": {"url": stores.url}}) as client:
        both = client.producer("left"), client.producer("right")
        for name in ("committed", "aborted"):
            txn = client.transaction()
            txn.begin()
            for producer in both:
                producer.send_many([name.encode()] * 3, txn=txn)
            ended[name] = txn.id
            (txn.abort if name == "aborted" else txn.commit)()
        asked = process.run(stores.host.coordinator())
        for txn_id in ended.values():
            process.run(asked.settle(txn_id))
        process.run(asked.collect(stores.host.environment.now_ms() + 10**9))
        with client.producer("kept") as producer, client.transaction() as txn:
            producer.send(b"kept", txn=txn)
            ended["kept"] = txn.id
        with client.producer("stray") as producer:
            producer.send(b"first")
        with client.consumer("left", "g", start="earliest") as consumer:
            consumer.ack(consumer.receive())
    return ended


async def edit(host: Host, key: Key, old: bytes, new: bytes) -> None:
    """Change the JSON of a record behind the framework's back."""
    found = await host.metadata.get(key)
    assert found is not None
    assert old in found.value
    await host.metadata.put(Put(key, found.value.replace(old, new, 1), found.version))


async def corrupt(host: Host, ids: dict[str, TxnID]) -> None:
    """Plant five corruptions."""
    left, right, stray = map(segment_of, ("left", "right", "stray"))
    await host.ledgers.delete(segment_of("gone"), None)
    (aborted,) = (await host.metadata.scan(paths.abort_records_range(right), 10)).records
    await host.metadata.delete(aborted.key, aborted.version)
    await edit(host, paths.header_key(ids["kept"]), b"COMMITTED", b"ABORTED")
    cursor = paths.cursor_key(left, "g")
    stored = await host.metadata.get(cursor)
    assert stored is not None
    mark = records.decode(records.CursorRecord, stored).mark_delete
    end = (await (await host.segment(left)).ledger.tail()).last_confirmed
    await edit(host, cursor, mark.encode(), f"{end.ledger_id}:50".encode())
    ledger = await host.ledgers.open(stray)
    try:
        entry = encode_entry([EntryMessage(None, b"second", (), 0, 0)], "x", Branch(STRAY))
        # The ledger knows nothing of a branch; otherwise the stores would not be opened as a pair.
        await ledger.append((Append(entry, 1),), None)
    finally:
        await ledger.close()


def test_five_corruptions_are_found(spark: SparkSession, stores_of: Any, tmp_path: Path) -> None:
    url = f"nats://{shared_hosts()}/audit-{secrets.token_hex(8)}"
    stores = stores_of(tmp_path, url)
    ids = fill(stores)
    process.run(corrupt(stores.host, ids))
    # Another host, which has remembered nothing.
    asked = StoreOptions(metadata=url, ledger=url)
    result = AuditJob(asked, tmp_path / "report", 7).run(spark, JobProgress(Console(quiet=True)))
    assert {(one.check, one.name, one.entry, one.transaction) for one in result.findings} == {
        ("missing-ledger", segment_of("gone"), -1, ""),
        ("torn-transaction", f"{segment_of('left')}, {segment_of('right')}", -1, str(ids["aborted"])),
        ("wrong-outcome", segment_of("kept"), -1, str(ids["kept"])),
        ("cursor-beyond-end", segment_of("left"), 50, ""),
        ("unknown-transaction", segment_of("stray"), -1, str(STRAY)),
    }
    messages = {one.name: one.messages for one in result.ledgers}
    assert messages == {
        segment_of(topic): count for topic, count in (("left", 6), ("right", 6), ("kept", 1), ("stray", 2))
    }
