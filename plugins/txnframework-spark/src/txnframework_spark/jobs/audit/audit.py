"""The audit job: plan, read in tasks, check, write the report."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from txnframework.broker import Digest, HashSum, Host
from txnframework.errors import SubscriptionNotFound
from txnframework.interfaces import ICopyableLedgerStore
from txnframework.model.layout import Layout
from txnframework.model.names import topic_of
from txnframework.model.store_copy import RememberedSequence
from txnframework_spark import process
from txnframework_spark.errors import JobFailed, Unsupported, describe_error
from txnframework_spark.jobs.audit.acknowledgments import (
    Flow,
    check_batches,
    check_flow,
    load_applications,
    load_cursors,
    load_histories,
)
from txnframework_spark.jobs.audit.checks import branches_of, check_copies, check_transactions, first_of_each
from txnframework_spark.jobs.audit.deployment import (
    Deployment,
    Piece,
    check_ledgers,
    cut,
    load_deployment,
    unchanged_copies,
)
from txnframework_spark.jobs.audit.findings import AuditFinding, by_check
from txnframework_spark.jobs.audit.page import render
from txnframework_spark.jobs.audit.pieces import FOUND, FOUND_ROWS, GONE, READ, auditing
from txnframework_spark.jobs.audit.report import (
    TRANSACTIONS,
    AuditFacts,
    AuditResult,
    Earlier,
    LedgerReport,
    require_new,
    write_report,
)
from txnframework_spark.jobs.session import JobProgress, Meter
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOKEN_BITS: Final = 62
_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class AuditJob:
    """
    An audit of a whole deployment, whose report is written to ``folder``; ``messages_max``: of one task.

    ``flows``: the relations of topics to check. ``since``: the folder of an earlier report, which entries are compared
    with.
    """

    stores: StoreOptions
    folder: Path
    messages_max: int
    flows: tuple[Flow, ...] = ()
    since: Path | None = None

    def run(self, spark: SparkSession, progress: JobProgress) -> AuditResult:
        """
        Read and check everything; the report becomes visible in one step at the end. Nothing of the stores is changed.

        :raises UnusableFolder: the folder is not empty, or the earlier report is none.
        :raises JobFailed: a task failed; there is no report.
        """
        host = process.host(self.stores)
        earlier = self.check(host)
        with progress.step("planning"):
            deployment = process.run(load_deployment(host))
            pieces = cut(deployment, self.messages_max, None if earlier is None else earlier.entries)
        partial = self.folder.with_name(f"{self.folder.name}.partial-{host.environment.random_bits(_TOKEN_BITS):x}")
        partial.mkdir(parents=True)
        try:
            result = self._audited(spark, host, deployment, pieces, earlier, partial, progress)
            write_report(partial, result, render(result))
            # A kill before this leaves a folder with another name; after it, the report is complete.
            partial.rename(self.folder)
        except Exception as error:
            raise JobFailed(f"the audit failed: {describe_error(error)}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return result

    def check(self, host: Host) -> Earlier | None:
        """Return the earlier report, if there is one, or raise the error of invalid usage; reads no ledger."""
        require_new(self.folder)
        for flow in self.flows:
            source, _ = (require_provable(process.run(host.topics.layout(one))) for one in (flow.source, flow.target))
            if flow.subscription not in source.subscriptions:
                raise SubscriptionNotFound(str(flow.source), flow.subscription)
        return None if self.since is None else Earlier.load(self.since, host.metadata.identity)

    def _audited(
        self,
        spark: SparkSession,
        host: Host,
        deployment: Deployment,
        pieces: Sequence[Piece],
        earlier: Earlier | None,
        partial: Path,
        progress: JobProgress,
    ) -> AuditResult:
        from pyspark import StorageLevel

        meter = Meter(spark)
        rows = self._rows(spark, deployment, pieces, meter).persist(StorageLevel.DISK_ONLY)
        try:
            with progress.tasks("reading", spark, meter):
                read = [row.asDict() for row in rows.where(f"kind IN ('{READ}', '{GONE}')").collect()]
                damages = [row.asDict() for row in first_of_each(rows.where(f"kind = '{FOUND}'"))]
            gone = {(row["name"], row["ledger"]) for row in read if row["kind"] == GONE}
            places = _by_ledger(read, pieces, gone)
            findings = process.run(_damages(host, damages)) + process.run(check_ledgers(host, deployment))
            findings += check_counts(deployment, places, {(row["name"], row["ledger"]) for row in damages})
            if earlier is not None:
                findings += earlier.check(deployment.ledgers, places, gone)
            with progress.step("checking transactions"):
                findings += check_transactions(spark, rows, self.stores, host)
                branches = branches_of(rows)
                branches.write.parquet((partial / TRANSACTIONS).as_uri())
                transactions = spark.read.parquet((partial / TRANSACTIONS).as_uri()).select("txn").distinct().count()
            with progress.step("checking compacted copies"):
                left_out = {pieces[row["piece"]].copy_of or row["name"] for row in read if row["kind"] == GONE}
                left_out |= {segment for segment in deployment.kept if deployment.lacks_copy(segment)}
                findings += check_copies(rows, deployment, process.run(unchanged_copies(host, deployment)) - left_out)
        finally:
            rows.unpersist()
        with progress.step("checking acknowledgments"):
            findings += self._acknowledgments(spark, host, deployment)
        checked = by_check(findings)
        if earlier is None:
            del checked["changed-ledger"]
        if not self.flows:
            del checked["missing-output"]
        ledgers = [_ledger_report(deployment, place, found) for place, found in sorted(places.items())]
        return AuditResult(
            AuditFacts(
                store=host.metadata.identity,
                created_ms=host.environment.now_ms(),
                ledgers=len(ledgers),
                entries=sum(one.entries for one in ledgers),
                messages=sum(one.messages for one in ledgers),
                bytes=sum(one.bytes for one in ledgers),
                transactions=transactions,
                checks={check: len(found) for check, found in checked.items()},
                flows=[f"{one.source} {one.subscription} {one.target}" for one in self.flows],
            ),
            ledgers,
            checked,
        )

    def _rows(self, spark: SparkSession, deployment: Deployment, pieces: Sequence[Piece], meter: Meter) -> DataFrame:
        # Small pieces share a task.
        tasks = max(spark.sparkContext.defaultParallelism, -(-deployment.messages // self.messages_max))
        numbers = spark.range(0, len(pieces), 1, max(1, min(len(pieces), tasks)))
        return numbers.mapInArrow(auditing(self.stores, pieces, meter), FOUND_ROWS)

    def _acknowledgments(self, spark: SparkSession, host: Host, deployment: Deployment) -> list[AuditFinding]:
        # Cursors before outputs, and histories before applications: what was acknowledged later is not judged.
        cursors = process.run(load_cursors(host, sorted(deployment.ends)))
        histories = process.run(load_histories(host, deployment))
        findings = deployment.beyond + check_batches(histories, process.run(load_applications(host)))
        for flow in self.flows:
            # Topics cannot be read whose segments lost their ends, so nothing is proved about their flows.
            lost = [one.name for one in deployment.beyond if topic_of(one.name) in (flow.source, flow.target)]
            if lost:
                detail = f"not compared, because {lost[0]} ends before a position that a record names"
                findings.append(AuditFinding("missing-output", str(flow.source), detail=detail))
            else:
                findings += check_flow(spark, self.stores, flow, cursors)
        return findings


Places = dict[tuple[str, int], list[dict[str, Any]]]


def require_provable(layout: Layout) -> Layout:
    """
    Return the layout of a topic of a flow.

    :raises Unsupported: the topic has migrated from another family, whose acknowledgments name other transactions.
    """
    if layout.origin is None:
        return layout
    raise Unsupported(
        f"{layout.topic} was {layout.origin.topic} before it migrated, and a flow over such a topic cannot be audited;"
        " leave the flow out: the messages of the topic are audited without it"
    )


def _by_ledger(read: Sequence[dict[str, Any]], pieces: Sequence[Piece], gone: set[tuple[str, int]]) -> Places:
    """Return the rows of the pieces that were read, by ledger, without those of ledgers that are partly gone."""
    found: Places = defaultdict(list)
    for row in read:
        place = (row["name"], row["ledger"])
        if place not in gone:
            digest = Digest(row["entries"], row["hash"])
            found[place].append(row | {"last": pieces[row["piece"]].last, "digest": digest})
    return dict(found)


def check_counts(
    deployment: Deployment, places: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]], damaged: set[tuple[str, int]]
) -> list[AuditFinding]:
    """Return the ledgers whose entries do not add up to what the ledger states, except the damaged ones."""
    found = []
    copies = {name for one in deployment.kept.values() for name in one.ledgers}
    for (name, ledger), rows in places.items():
        stated = deployment.ledgers[name, ledger]
        counts = {"bytes": stated.bytes}
        if name in deployment.ends or name in copies:
            counts["messages"] = stated.messages
        for what, expected in counts.items():
            counted = sum(row[what] for row in rows)
            if counted != expected and (name, ledger) not in damaged:
                detail = f"its entries have {counted} {what} instead of {expected}"
                found.append(AuditFinding("wrong-count", name, ledger, detail=detail))
    return found


def _ledger_report(deployment: Deployment, place: tuple[str, int], rows: Sequence[Mapping[str, Any]]) -> LedgerReport:
    total = HashSum()
    for row in rows:
        total.add_digest(row["digest"])

    def added(name: str) -> int:
        return sum(row[name] for row in rows)

    def known(name: str) -> list[int]:
        return [row[name] for row in rows if row[name] is not None]

    return LedgerReport(
        *place,
        entries=total.count,
        # The messages of a log-driven topic are counted by the ledger: its entries also hold markers.
        messages=added("messages") or deployment.ledgers[place].messages,
        aborted=added("aborted"),
        undecided=added("undecided"),
        bytes=added("bytes"),
        hash=total.digest.hash,
        first_ms=min(known("first_ms"), default=None),
        last_ms=max(known("last_ms"), default=None),
    )


async def _damages(host: Host, rows: Sequence[Mapping[str, Any]]) -> list[AuditFinding]:
    """Return the damages; a missing entry is named with its transaction, if the store remembers its producer."""
    found = []
    remembered: dict[str, dict[tuple[int, int], str]] = {}
    for row in rows:
        one = AuditFinding(row["check"], row["name"], row["ledger"], row["entry"], detail=row["detail"])
        if one.name not in remembered:
            remembered[one.name] = await _remembered(host, one.name)
        found.append(replace(one, transaction=remembered[one.name].get((one.ledger, one.entry), "")))
    return found


async def _remembered(host: Host, name: str) -> dict[tuple[int, int], str]:
    """Return the transactions of the entries in the deduplication window of a managed ledger."""
    found: dict[tuple[int, int], str] = {}
    if not ICopyableLedgerStore.providedBy(host.ledgers):
        return found
    after: RememberedSequence | None = None
    while page := await host.ledgers.remembered_sequences(name, after, _PAGE):
        for one in page:
            if one.branch is not None:
                found[one.position.ledger_id, one.position.entry_id] = str(one.branch.txn_id)
        after = page[-1]
    return found
