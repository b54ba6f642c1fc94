"""The audit job: plan, read in tasks, check, write the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from txnframework.broker import Host
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
from txnframework_spark.jobs.audit.checks import check_copies, check_transactions, first_of_each
from txnframework_spark.jobs.audit.deployment import (
    Deployment,
    check_ledgers,
    cut,
    load_deployment,
    unchanged_copies,
)
from txnframework_spark.jobs.audit.entries import ENTRIES, reading
from txnframework_spark.jobs.audit.ledgers import (
    changed_ledgers,
    counted_ledgers,
    damaged_entries,
    missing_entries,
    stated_ledgers,
    wrong_counts,
)
from txnframework_spark.jobs.audit.report import AuditFinding, AuditReport, LedgerReport, by_check, require_new
from txnframework_spark.jobs.session import JobProgress, Meter
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class AuditJob:
    """
    An audit of a whole deployment, whose report is written to ``file``; ``messages_max``: of one task.

    ``flows``: the relations of topics to check. ``since``: the file of an earlier report, which entries are compared
    with.
    """

    stores: StoreOptions
    file: Path
    messages_max: int
    flows: tuple[Flow, ...] = ()
    since: Path | None = None

    def run(self, spark: SparkSession, progress: JobProgress) -> AuditReport:
        """
        Read and check everything; the report becomes visible in one step at the end. Nothing of the stores is changed.

        :raises InvalidInput: the file exists, or the earlier report is none.
        :raises JobFailed: a task failed; there is no report.
        """
        host = process.host(self.stores)
        earlier = self.check(host)
        with progress.step("planning"):
            deployment = process.run(load_deployment(host))
        try:
            report = self._audited(spark, host, deployment, earlier, progress)
            report.write(self.file)
        except Exception as error:
            raise JobFailed(f"the audit failed: {describe_error(error)}") from error
        return report

    def check(self, host: Host) -> AuditReport | None:
        """Return the earlier report, if there is one, or raise the error of invalid usage; reads no ledger."""
        require_new(self.file)
        for flow in self.flows:
            source, _ = (require_provable(process.run(host.topics.layout(one))) for one in (flow.source, flow.target))
            if flow.subscription not in source.subscriptions:
                raise SubscriptionNotFound(str(flow.source), flow.subscription)
        return None if self.since is None else AuditReport.load(self.since, host.metadata.identity)

    def _audited(
        self,
        spark: SparkSession,
        host: Host,
        deployment: Deployment,
        earlier: AuditReport | None,
        progress: JobProgress,
    ) -> AuditReport:
        from pyspark import StorageLevel

        meter = Meter(spark)
        rows = self._rows(spark, deployment, meter).persist(StorageLevel.DISK_ONLY)
        try:
            with progress.tasks("reading", spark, meter):
                left_out = rows.where("gone").select("name", "ledger", "copy_of").distinct().collect()
            gone = {(row["name"], row["ledger"]) for row in left_out}
            entries = rows.where("NOT gone")
            with progress.step("checking ledgers"):
                stated = stated_ledgers(spark, deployment, gone)
                ledgers = counted_ledgers(entries, stated)
                damages = first_of_each(missing_entries(entries, stated).union(damaged_entries(entries)))
                found = process.run(_with_transactions(host, damages)) + process.run(check_ledgers(host, deployment))
                found += wrong_counts(ledgers)
                if earlier is not None:
                    found += changed_ledgers(spark, entries, earlier.ledgers, deployment, gone)
            with progress.step("checking transactions"):
                transactions = entries.select("txn").where("txn IS NOT NULL").distinct().count()
                found += first_of_each(check_transactions(spark, entries, self.stores, host))
            with progress.step("checking compacted copies"):
                unchanged = process.run(unchanged_copies(host, deployment))
                unchanged -= {row["copy_of"] or row["name"] for row in left_out}
                unchanged -= {segment for segment in deployment.kept if deployment.lacks_copy(segment)}
                if unchanged:
                    found += first_of_each(check_copies(spark, entries, deployment, unchanged))
        finally:
            rows.unpersist()
        with progress.step("checking acknowledgments"):
            found += self._acknowledgments(spark, host, deployment)
        checked = by_check(found)
        if earlier is None:
            del checked["changed-ledger"]
        if not self.flows:
            del checked["missing-output"]
        return AuditReport(
            store=host.metadata.identity,
            created_ms=host.environment.now_ms(),
            flows=[f"{one.source} {one.subscription} {one.target}" for one in self.flows],
            transactions=transactions,
            checks={check: len(some) for check, some in checked.items()},
            findings=[one for some in checked.values() for one in some],
            ledgers=[_ledger_report(one) for one in ledgers],
        )

    def _rows(self, spark: SparkSession, deployment: Deployment, meter: Meter) -> DataFrame:
        pieces = cut(deployment, self.messages_max)
        # Small pieces share a task.
        tasks = max(spark.sparkContext.defaultParallelism, -(-deployment.messages // self.messages_max))
        numbers = spark.range(0, len(pieces), 1, max(1, min(len(pieces), tasks)))
        return numbers.mapInArrow(reading(self.stores, pieces, meter), ENTRIES)

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


def _ledger_report(counted: Mapping[str, Any]) -> LedgerReport:
    return LedgerReport(
        counted["name"],
        counted["ledger"],
        entries=counted["hashed"] or 0,
        # The messages of a log-driven topic are counted by the ledger: its entries also hold markers.
        messages=counted["messages"] or counted["stated_messages"] or 0,
        bytes=counted["bytes"],
        hash=counted["hash"] or "",
    )


async def _with_transactions(host: Host, damages: Sequence[AuditFinding]) -> list[AuditFinding]:
    """Return the damages; an entry is named with its transaction, if the store remembers its producer."""
    found = []
    remembered: dict[str, dict[tuple[int, int], str]] = {}
    for one in damages:
        if one.name not in remembered:
            remembered[one.name] = await _remembered(host, one.name)
        found.append(structs.replace(one, transaction=remembered[one.name].get((one.ledger, one.entry), "")))
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
