"""``txnframework job audit`` on a real Spark: a healthy deployment passes, and every planted corruption is found."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from rich.console import Console

import txnframework
from txnframework.broker import EVERYTHING, CompactionResult, Copied, copies
from txnframework.errors import SubscriptionNotFound
from txnframework.model.compacted import encode_whole
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.ids import Branch, TxnID
from txnframework.model.ledger import LedgerSummary
from txnframework.model.names import TopicName
from txnframework_spark import process
from txnframework_spark.jobs.audit.acknowledgments import Flow, check_flow, load_cursors
from txnframework_spark.jobs.audit.audit import AuditJob
from txnframework_spark.jobs.audit.checks import first_of_each
from txnframework_spark.jobs.audit.deployment import Deployment, load_deployment
from txnframework_spark.jobs.audit.ledgers import (
    changed_ledgers,
    counted_ledgers,
    hashes,
    missing_entries,
    stated_ledgers,
    wrong_counts,
)
from txnframework_spark.jobs.audit.report import CHECKS, AuditReport, LedgerReport
from txnframework_spark.jobs.session import JobProgress
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Audit = Callable[..., AuditReport]
HOUR_MS = 3_600_000
FLOW = Flow(TopicName.parse("in"), "g", TopicName.parse("out"))


@pytest.fixture
def audit(spark: SparkSession) -> Audit:
    """Return what audits stores, in small tasks, and writes its report beside them."""

    def run(stores: Any, name: str = "report.json", **options: Any) -> AuditReport:
        work = AuditJob(StoreOptions(metadata=stores.url), stores.directory / name, 7, **options)
        return work.run(spark, JobProgress(Console(quiet=True)))

    return run


def segment_of(topic: str) -> str:
    return f"segment://public/default/{topic}/0000-ffff-0"


def fill(stores: Any) -> dict[str, TxnID]:
    """Make transactions over two topics, of which some records are deleted, and compacted copies; return the ids."""
    stores.create("left", "right", "lost", "damaged", "stray", "counted", "copied", "gone", segments=1)
    ended: dict[str, TxnID] = {}
    with txnframework.blocking.open({"metadata": {"url": stores.url}, "ledger": {"url": stores.url}}) as client:
        both = client.producer("left"), client.producer("right")
        for name in ("committed", "aborted", "collected", "collected-aborted"):
            txn = client.transaction()
            txn.begin()
            for producer in both:
                producer.send_many([name.encode()] * 3, txn=txn)
            ended[name] = txn.id
            (txn.abort if "aborted" in name else txn.commit)()
        client.compact("left")
        asked = process.run(stores.host.coordinator())
        for txn_id in ended.values():
            process.run(asked.settle(txn_id))
        process.run(asked.collect(stores.host.environment.now_ms() + 10**9))
        with client.producer("lost") as producer:
            for number in range(4):
                with client.transaction() as txn:
                    producer.send(b"%d" % number, txn=txn)
                    ended[f"lost {number}"] = txn.id
        for topic in ("damaged", "stray", "counted", "copied"):
            with client.producer(topic) as producer:
                for value in (b"one", b"two", b"three"):
                    producer.send(value)
        client.compact("copied")
    return ended


def sql(stores: Any, statement: str, *given: Any) -> Any:
    """Run a statement on the stores, behind the framework's back; return the first row, if any."""
    with closing(sqlite3.connect(stores.url.removeprefix("sqlite:///"))) as database, database:
        done = database.execute(statement, given)
        assert done.rowcount in (-1, 1), statement
        return done.fetchone()


def place_of(stores: Any, segment: str, entry: int) -> int:
    """Return the place of an entry of a segment's first ledger in the table of entries."""
    named = "SELECT ledger_id FROM ledger_segments JOIN managed_ledgers ON id = managed_id WHERE name = ?"
    return int(sql(stores, named, segment)[0]) * 2**32 + entry


def rewrite(stores: Any, segment: str, branch: Branch | None) -> None:
    """Replace the first entry of a segment by one with another first key, and with this branch; it is valid."""
    place = place_of(stores, segment, 0)
    (data,) = sql(stores, "SELECT data FROM entries WHERE place = ?", place)
    view = EntryView(data)
    first, *others = view.messages()
    first = msgspec.structs.replace(first, key=None if first.key is None else bytes(len(first.key)))
    changed = encode_entry([first, *others], view.producer, branch or view.branch)
    assert len(changed) == len(data)
    sql(stores, "UPDATE entries SET data = ? WHERE place = ?", changed, place)


def edit(stores: Any, path: str, old: str, new: str) -> None:
    """Change the JSON of a record."""
    (value,) = sql(stores, "SELECT value FROM records WHERE path LIKE ?", path)
    changed = re.sub(old, new, value.decode(), count=1)
    assert changed != value.decode()
    sql(stores, "UPDATE records SET value = ? WHERE path LIKE ?", changed.encode(), path)


def compact_again(stores: Any, segment: str, written: Callable[[list[Copied]], list[Copied]]) -> None:
    """Replace the compacted copy of a segment by what ``written`` makes of all its entries, aborted ones included."""
    attempts = stores.host.compaction.attempts

    async def work() -> None:
        attempt = await attempts.begin(segment)
        plan = await stores.host.compaction.plan(segment, attempt.earlier, "commit", 100)
        async with (
            attempts.open_writer(attempt) as writer,
            aclosing(copies(stores.host.ledgers, plan.ranges[0], frozenset(), None)) as found,
        ):
            for one in written([one async for one in found]):
                await writer.add(one.data, one.messages)
            await writer.seal()
        await attempts.finish(attempt, CompactionResult((writer.name,), plan.upto, EVERYTHING, "position"))

    process.run(work())


def spoiled(found: list[Copied]) -> list[Copied]:
    """Return the first copy twice, the second one with another content, and not the third one."""
    first, second, _ = found
    message = EntryMessage(None, b"owt", (), 0, 0)
    return [first, first, replace(second, data=encode_whole(encode_entry([message], "x", None), second.position, 1))]


def test_a_healthy_deployment_passes_and_each_corruption_is_found(
    stores: Any, audit: Audit, run_available: Any, tmp_path: Path
) -> None:
    """All of them are planted at once: each is found where it is, and nothing else is found."""
    stores.publish(["a", "b", "c", "d", "e", "f", "g"])
    run_available()
    ids = fill(stores)
    before = audit(stores, flows=(FLOW,))
    assert before.findings == []
    assert before.checks == dict.fromkeys((check for check in CHECKS if check != "changed-ledger"), 0)
    report = stores.directory / "report.json"
    ledgers = {one.name: one for one in before.ledgers}
    left = ledgers[segment_of("left")]
    assert (left.entries, left.messages) == (4, 12)
    assert msgspec.json.decode(report.read_bytes(), type=AuditReport) == before

    # It waits for what is settled in the background, so the copied files are complete.
    process.run(stores.host.close())
    broken = stores.copy(tmp_path / "broken")
    lost, out, cursor = segment_of("lost"), "segment://public/default/out/0000-7fff-0", "/cursor/%in%0000-7fff%/g"
    sql(broken, "DELETE FROM managed_ledgers WHERE name = ?", segment_of("gone"))
    sql(broken, "DELETE FROM entries WHERE place = ?", place_of(broken, lost, 3))
    damaged = "UPDATE entries SET data = substr(data, 1, 90) || x'ff' || substr(data, 92) WHERE place = ?"
    sql(broken, damaged, place_of(broken, segment_of("damaged"), 2))
    count = "UPDATE ledger_segments SET messages = messages + 1 WHERE ledger_id = ?"
    sql(broken, count, ledgers[segment_of("counted")].ledger)
    sql(broken, "DELETE FROM records WHERE path LIKE ?", f"/txn-aborted/%right%{ids['collected-aborted']}%")
    edit(broken, f"/txn/{ids['lost 2']}", "COMMITTED", "ABORTED")
    edit(broken, "/txn-app/app", r'"committed":\[.*\]', '"committed":[]')
    edit(broken, cursor, r'"mark_delete":"(\d+):\d+"', r'"mark_delete":"\1:50"')
    stray = TxnID(0, 10**9)
    rewrite(broken, segment_of("stray"), Branch(stray))
    rewrite(broken, out, None)
    compact_again(broken, segment_of("left"), lambda found: found)
    compact_again(broken, segment_of("copied"), spoiled)

    after = audit(broken, flows=(FLOW,), since=report)
    copied, one = segment_of("copied"), "segment://public/default/in/0000-7fff-0"
    found = {(finding.check, finding.name, finding.entry, finding.transaction) for finding in after.findings}
    committed_by = {(check, name) for check, name, _, _ in found if check == "batch-without-commit"}
    assert committed_by == {("batch-without-commit", name) for name in ledgers if "/in/" in name}
    assert {one for one in found if one[0] != "batch-without-commit"} == {
        ("missing-ledger", segment_of("gone"), -1, ""),
        ("damaged-entry", lost, 3, str(ids["lost 3"])),
        ("damaged-entry", segment_of("damaged"), 2, ""),
        ("wrong-count", segment_of("counted"), -1, ""),
        ("torn-transaction", f"{segment_of('left')}, {segment_of('right')}", -1, str(ids["collected-aborted"])),
        ("wrong-outcome", lost, -1, str(ids["lost 2"])),
        ("unknown-transaction", segment_of("stray"), -1, str(stray)),
        ("aborted-compacted", segment_of("left"), 1, ""),
        ("aborted-compacted", segment_of("left"), 3, ""),
        ("stray-copy", copied, 0, ""),
        ("changed-copy", copied, 1, ""),
        ("missing-copy", copied, 2, ""),
        ("cursor-beyond-end", one, 50, ""),
        ("missing-output", "topic://public/default/in", -1, ""),
        *(("changed-ledger", name, -1, "") for name in (lost, segment_of("damaged"), segment_of("stray"), out)),
    }
    # This store itself refuses to read where an entry is missing.
    assert set(after.checks) == set(CHECKS) == {"missing-entry", *(finding.check for finding in after.findings)}


def test_an_output_behind_an_open_transaction_is_not_missing(
    spark: SparkSession, stores: Any, run_available: Any
) -> None:
    """The open transaction hides it from readers. An output that only the open transaction has is missing."""
    asked = StoreOptions(metadata=stores.url)
    with txnframework.blocking.open({"metadata": {"url": stores.url}, "ledger": {"url": stores.url}}) as client:
        producer = client.producer("out")
        # Neither ends by itself on a busy machine.
        with client.transaction(timeout_ms=HOUR_MS, outlives_client=True) as txn:
            for key in (b"a", b"b", b"c", b"d", b"late"):
                producer.send(b"open", key=key, txn=txn)
            stores.publish(["a", "b", "c", "d"])
            run_available(lambda frame: frame.where("key != 'd'").select("key", "value"))
            assert stores.read() == {}
            cursors = process.run(load_cursors(stores.host, process.run(load_deployment(stores.host)).ends))
            found = check_flow(spark, asked, FLOW, cursors)
            assert [(one.check, one.name) for one in found] == [("missing-output", str(FLOW.source))]
            assert "'d'" in found[0].detail


def test_many_findings_of_one_check_hide_no_other(spark: SparkSession) -> None:
    check = "if(id < 98, 'often', 'seldom') AS check"
    rows = spark.range(100).selectExpr(
        check, "'n' AS name", "id AS ledger", "-1 AS entry", "'' AS transaction", "'' AS detail"
    )
    found = first_of_each(rows, 3)
    assert sorted(one.check for one in found) == ["often"] * 3 + ["seldom"] * 2
    assert len({one.ledger for one in found}) == 5


def test_missing_entries_are_named_in_one_range_each_and_excuse_the_counts(spark: SparkSession) -> None:
    """At the beginning, in between and at the end; a ledger without gaps is not named."""
    columns = "name string, ledger bigint, entry bigint, messages bigint, bytes bigint, hash string, damage string"
    rows = [("a", 3, entry, 1, 1, "h", None) for entry in (2, 3, 5)] + [("b", 4, 0, 1, 1, "h", None)]
    entries = spark.createDataFrame(rows, columns)
    summaries = {("a", 3): LedgerSummary(3, 9, 9, 9, 0), ("b", 4): LedgerSummary(4, 1, 1, 2, 0)}
    stated = stated_ledgers(spark, Deployment(ledgers=summaries), ())
    found = sorted(first_of_each(missing_entries(entries, stated)))
    assert [(one.check, one.name, one.ledger, one.entry, one.detail) for one in found] == [
        ("missing-entry", "a", 3, 0, "entries 0 to 1 are missing"),
        ("missing-entry", "a", 3, 4, "the entry is missing"),
        ("missing-entry", "a", 3, 6, "entries 6 to 8 are missing"),
    ]
    (wrong,) = wrong_counts(counted_ledgers(entries, stated))
    assert (wrong.name, wrong.detail) == ("b", "its entries have 1 bytes instead of 2")


def test_an_earlier_report_is_compared_with_the_first_entries_only(spark: SparkSession) -> None:
    columns = "name string, ledger bigint, entry bigint, hash string"

    def entries(*hashed: str) -> DataFrame:
        return spark.createDataFrame([("a", 3, number, text) for number, text in enumerate(hashed)], columns)

    def hash_of(*hashed: str) -> str:
        (row,) = hashes(entries(*hashed)).collect()
        return str(row["hash"])

    earlier = [
        LedgerReport("a", 2, 5, 5, 5, ""),
        LedgerReport("a", 3, 2, 2, 2, hash_of("x", "y")),
        LedgerReport("a", 4, 1, 1, 1, ""),
    ]
    summary = LedgerSummary(3, 3, 3, 1, 0)
    deployment = Deployment(ledgers={("a", 3): summary, ("a", 5): summary})

    def changed(*hashed: str, gone: bool = False) -> list[int]:
        places = {("a", 3)} if gone else set()
        return [one.ledger for one in changed_ledgers(spark, entries(*hashed), earlier, deployment, places)]

    assert changed("x", "y", "z") == [4], "ledger 2 was trimmed, as all before ledger 3"
    assert changed("x", "z", "z") == [4, 3]
    assert changed("x") == [4, 3]
    assert changed("x", gone=True) == [4], "ledger 3 was trimmed after it was listed"


def test_a_flow_of_an_unknown_subscription_is_refused(stores: Any, audit: Audit) -> None:
    with pytest.raises(SubscriptionNotFound):
        audit(stores, flows=(FLOW,))
