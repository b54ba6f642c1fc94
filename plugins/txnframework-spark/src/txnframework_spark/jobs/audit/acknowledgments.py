"""The checks of an audit that concern subscriptions: their cursors, the history of pipelines, and outputs of inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from txnframework.broker import Host
from txnframework.interfaces import IApplicationCoordinator
from txnframework.model import paths, records
from txnframework.model.cursor import Cursor, from_record
from txnframework.model.metadata import KeyRange, Record
from txnframework.model.names import TopicName, parse_name, segment_id_of
from txnframework.model.positions import Position
from txnframework.model.records import HistoryDocument
from txnframework.model.transactions import Application
from txnframework_spark.jobs.audit.checks import HEADERS, reading_headers
from txnframework_spark.jobs.audit.deployment import Deployment
from txnframework_spark.jobs.audit.report import FINDINGS_MAX, AuditFinding
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PAGE: Final = 1_000
_COMMITTED_MAX: Final = 100
"""The number of committed batches that an application remembers."""


@dataclass(frozen=True, slots=True)
class Flow:
    """
    A relation of topics: each acknowledged message of ``source`` has a message in ``target`` with the same match.

    ``match`` and ``target_match``: SQL expressions over the columns of the source.
    """

    source: TopicName
    subscription: str
    target: TopicName
    match: str = "key"
    target_match: str = "key"


async def scan(host: Host, keys: KeyRange) -> list[Record]:
    """Return the records of a range."""
    found: list[Record] = []
    left: KeyRange | None = keys
    while left is not None:
        page = await host.metadata.scan(left, _PAGE)
        found += page.records
        left = page.resume if isinstance(page.resume, KeyRange) else None
    return found


async def load_cursors(host: Host, segments: Iterable[str]) -> dict[tuple[str, str], Cursor]:
    """Return the cursors on segments, by segment and subscription; without those that are unsubscribed."""
    found: dict[tuple[str, str], Cursor] = {}
    for segment in segments:
        for record in await scan(host, paths.cursors_range(segment)):
            cursor = from_record(records.decode(records.CursorRecord, record))
            if not cursor.tombstone:
                found[paths.cursor_of(record.key.path)] = cursor
    return found


async def load_histories(host: Host, deployment: Deployment) -> list[tuple[str, str, HistoryDocument]]:
    """Return the ranges that batches of pipelines have acknowledged, with topic and subscription."""
    found = []
    for layout in deployment.layouts:
        for record in await scan(host, paths.subscriptions_range(str(layout.topic))):
            topic, name = paths.subscription_of(record.key.path)
            document = records.decode(records.SubscriptionRecord, record)
            found += [(topic, name, one) for one in document.history if not document.deleted]
    return found


async def load_applications(host: Host) -> list[Application]:
    """Return all applications, with the effects of transactions that have ended."""
    coordinator = await host.coordinator("segment")
    if not IApplicationCoordinator.providedBy(coordinator):
        return []
    found = []
    for record in await scan(host, paths.applications_range()):
        application = await coordinator.application(paths.application_of(record.key.path))
        if application is not None:
            found.append(application)
    return found


def check_batches(
    histories: Sequence[tuple[str, str, HistoryDocument]], applications: Sequence[Application]
) -> list[AuditFinding]:
    """
    Return the acknowledged ranges that no application has committed; the histories were read before the applications.

    An application remembers its last batches only, so an older range, and a range of a query that no application
    remembers, is not judged.
    """
    committed: dict[tuple[str, int], set[tuple[str, str, str, Position]]] = defaultdict(set)
    oldest: dict[str, int] = {}
    for application in applications:
        for batch in application.committed:
            committed[batch.query, batch.version].update(
                (source.topic, source.subscription, segment, end)
                for source in batch.ranges
                for segment, end in source.end.items()
            )
        for query, version in _remembered(application).items():
            # A query may have had another application before: what either of them has forgotten is not judged.
            oldest[query] = max(version, oldest.get(query, version))
    found = []
    for topic, subscription, one in histories:
        known = committed.get((one.query, one.batch), set())
        is_remembered = one.query in oldest and one.batch >= oldest[one.query]
        if is_remembered and (topic, subscription, one.segment, Position.parse(one.end)) not in known:
            detail = f"{subscription} was acknowledged up to {one.end} by batch {one.batch} of query {one.query}"
            end = Position.parse(one.end)
            found.append(
                AuditFinding(
                    "batch-without-commit",
                    one.segment,
                    end.ledger_id,
                    end.entry_id,
                    detail=f"{detail}, which its application did not commit",
                )
            )
    return found


def _remembered(application: Application) -> dict[str, int]:
    """Return the first batch of each query from which on an application remembers all that it has committed."""
    queries = {application.query, *(batch.query for batch in application.committed)}
    if len(application.committed) < _COMMITTED_MAX:
        return dict.fromkeys(queries, -1)
    first: dict[str, int] = {}
    for batch in application.committed:
        first[batch.query] = min(batch.version, first.get(batch.query, batch.version))
    return first


def check_flow(
    spark: SparkSession, stores: StoreOptions, flow: Flow, cursors: Mapping[tuple[str, str], Cursor]
) -> list[AuditFinding]:
    """Return the acknowledged messages of a flow's source without an output; the cursors were read before."""
    from pyspark.sql import functions as f

    given = {name: value for name, value in asdict(stores).items() if value}
    rows = spark.read.format("txnframework").options(**given, includeHeaders="true")
    source = rows.option("subscribe", str(flow.source)).load().withColumn("match", f.expr(flow.match))
    outputs = spark.read.format("txnframework").options(**given, includeHeaders="true", subscribe=str(flow.target))
    match = f.expr(flow.target_match).alias("match")
    done = _acknowledged(spark, flow, cursors)
    at = f.struct("offset.ledger", "offset.entry")
    inside = f.exists("deleted", lambda one: (one["first"] <= at) & (at <= one["last"]))
    partly = f.exists(
        "partial", lambda one: (one["entry"] == at) & f.array_contains(one["indexes"], f.col("offset.index"))
    )
    acknowledged = source.join(f.broadcast(done), "segment").where((at <= f.col("mark")) | inside | partly)
    missing = acknowledged.where(f.col("match").isNotNull()).join(outputs.load().select(match), "match", "left_anti")
    if missing.isEmpty():
        return []
    # An open transaction hides later outputs in its segment, although their own transactions are committed.
    every = outputs.options(isolationLevel="read_uncommitted", includeTransaction="true").load()
    headers = spark.range(0, 1, 1, 1).mapInArrow(reading_headers(stores), HEADERS)
    ended = every.join(headers, every["__txn"] == headers["txn"], "left").where(
        f.col("__txn").isNull() | (f.col("state") == "COMMITTED")
    )
    found = (
        missing.join(ended.select(match), "match", "left_anti")
        .selectExpr("segment", "offset.ledger", "offset.entry", "cast(match as string) as match")
        .orderBy("segment", "ledger", "entry")
        .limit(FINDINGS_MAX)
        .collect()
    )
    return [
        AuditFinding(
            "missing-output",
            str(flow.source),
            row["ledger"],
            row["entry"],
            detail=f"{flow.subscription} has acknowledged {row['match']!r} in segment {row['segment']}, and"
            f" {flow.target} has no such message",
        )
        for row in found
    ]


def _acknowledged(spark: SparkSession, flow: Flow, cursors: Mapping[tuple[str, str], Cursor]) -> DataFrame:
    def place(position: Position) -> tuple[int, int]:
        return position.ledger_id, position.entry_id

    rows = [
        (
            segment_id_of(parse_name(segment)),
            place(cursor.mark_delete),
            [(place(first), place(last)) for first, last in cursor.deleted],
            [(place(entry), sorted(indexes)) for entry, indexes in cursor.partial.items()],
        )
        for (segment, subscription), cursor in cursors.items()
        if subscription == flow.subscription and parse_name(segment).topic == flow.source
    ]
    at = "struct<ledger: bigint, entry: bigint>"
    return spark.createDataFrame(
        rows,
        f"segment bigint, mark {at}, deleted array<struct<first: {at}, last: {at}>>,"
        f" partial array<struct<entry: {at}, indexes: array<int>>>",
    )
