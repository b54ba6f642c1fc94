"""Open and unsettled transactions, and one transaction with its timeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from txnframework.client import Client, FamilyStatus, HangingTransaction, parse_txn_id
from txnframework.errors import NotFound
from txnframework.model.names import topic_of
from txnframework.model.transactions import Participant, State, Transaction
from txnframework_console.catalog import Sample
from txnframework_console.views.source import PAGE_ROWS, Source

CONCURRENT_READS = 8
TOPICS_MAX = 20
"""The most topics that are read for what the transactions of a page keep from being read."""


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """
    One transaction.

    ``owner_lives``: whether the process that began it is alive; None: it names none, or has ended.
    ``operations_left``: the unsettled operations of an ended one. ``undecided``: the messages that wait in the segments
    that it wrote to; None: not read. ``age_ms``: since it began, or since it ended.
    """

    found: Transaction
    age_ms: int
    owner_lives: bool | None
    operations_left: int
    undecided: int | None

    @property
    def id(self) -> str:
        """The id of the transaction."""
        return str(self.found.txn_id)

    @property
    def process(self) -> str:
        """The process that began it, ``CLIENT@HOST:PID``; empty: it names none."""
        return self.found.process or ""

    @property
    def is_open(self) -> bool:
        """Whether it can still be committed or aborted."""
        return self.found.state is State.OPEN

    @property
    def written(self) -> tuple[str, ...]:
        """The segments that it wrote to."""
        return tuple(one.segment for one in sorted(self.found.participants) if not one.subscription)

    @property
    def acknowledged(self) -> tuple[tuple[str, str], ...]:
        """The segments and subscriptions on which it acknowledged."""
        return tuple((one.segment, one.subscription) for one in sorted(self.found.participants) if one.subscription)


@dataclass(frozen=True, slots=True)
class TransactionsView:
    """A page of transactions, the numbers of each family, and the id after which the next page begins (or None)."""

    rows: tuple[TransactionRow, ...]
    families: tuple[FamilyStatus, ...]
    next_after: str | None
    query: TransactionsQuery
    now_ms: int


@dataclass(frozen=True, slots=True)
class TransactionsQuery:
    """The list of open and unsettled transactions, after the transaction ``after``; ``age_ms_min``: of this age on."""

    after: str = ""
    age_ms_min: int = 0
    rows: int = PAGE_ROWS

    async def read(self, source: Source) -> TransactionsView:
        """Return one page; raise TransactionNotFound if ``after`` was forgotten."""
        client = source.client
        after = HangingTransaction(await client.describe_transaction(self.after), 0) if self.after else None
        families = await source.catalog.families()
        found = await client.find_hanging(self.age_ms_min, after=after, transactions_max=self.rows + 1)
        rows = await transaction_rows(source, found[: self.rows])
        more = rows[-1].id if len(found) > self.rows and rows else None
        return TransactionsView(rows, families, more, self, source.now_ms)


async def transaction_rows(source: Source, found: Iterable[HangingTransaction]) -> tuple[TransactionRow, ...]:
    """Return transactions with their participants and what waits for them."""
    slots = asyncio.Semaphore(CONCURRENT_READS)

    async def completed(one: HangingTransaction) -> HangingTransaction:
        if one.transaction.state is not State.OPEN:
            return one  # it names the participants that are left
        async with slots:
            try:
                described = await source.client.describe_transaction(one.transaction.txn_id)
            except NotFound:
                described = one.transaction
        return HangingTransaction(described, one.age_ms, one.owner_lives, one.operations_left)

    known = await asyncio.gather(*map(completed, found))
    topics = dict.fromkeys(
        str(topic_of(part.segment)) for one in known for part in sorted(one.transaction.participants)
    )
    samples = await source.catalog.read(list(topics)[:TOPICS_MAX])
    waiting = undecided_of(samples.values())
    return tuple(
        TransactionRow(
            one.transaction,
            one.age_ms,
            one.owner_lives,
            one.operations_left,
            _undecided(one.transaction.participants, waiting) if one.transaction.state is State.OPEN else None,
        )
        for one in known
    )


def undecided_of(samples: Iterable[Sample]) -> dict[str, int]:
    """Return how many messages wait for an open transaction, by segment."""
    return {one.name: one.undecided for sample in samples for one in sample.topic.segments}


def _undecided(participants: Iterable[Participant], waiting: dict[str, int]) -> int | None:
    written = {one.segment for one in participants if not one.subscription}
    if not written <= waiting.keys():
        return None
    return sum(waiting[one] for one in written)


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """
    One event of a transaction.

    ``at_ms``: None if the time is not stored. ``is_done``: it has happened. ``kind`` is its form in the drawing.
    """

    title: str
    at_ms: int | None
    is_done: bool
    detail: str = ""
    kind: str = "plain"


@dataclass(frozen=True, slots=True)
class OperationRow:
    """What one branch did at one participant; ``counts``: whether the commit lists the branch, None: not decided."""

    branch: int | None
    segment: str
    topic: str
    subscription: str
    counts: bool | None
    undecided: int | None


@dataclass(frozen=True, slots=True)
class TransactionView:
    """One transaction: its row, its timeline and its operations."""

    row: TransactionRow
    events: tuple[TimelineEvent, ...]
    operations: tuple[OperationRow, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class TransactionQuery:
    """One transaction, by its id."""

    id: str

    async def read(self, source: Source) -> TransactionView:
        """Return the transaction, or raise TransactionNotFound."""
        client, txn_id = source.client, parse_txn_id(self.id)
        found = await client.describe_transaction(txn_id)
        lives = await _lives(client, found)
        since_ms = found.created_ms if found.state is State.OPEN else (found.finalized_ms or found.created_ms)
        # Participants of an ended transaction are those that are not settled.
        left = 0 if found.state is State.OPEN else len(found.parts or found.participants)
        shown = HangingTransaction(found, max(0, source.now_ms - since_ms), lives, left)
        (row,) = await transaction_rows(source, [shown])
        retention_ms = client.host.config.transactions.retention_ms
        return TransactionView(
            row, timeline(row, source.now_ms, retention_ms), await _operations(source, found), source.now_ms
        )


async def _lives(client: Client, found: Transaction) -> bool | None:
    """Return whether the process of an open transaction is alive; None: it has ended, or names no process."""
    if found.session is None or found.state is not State.OPEN:
        return None
    return bool(await client.leases(f"session {found.session}", leases_max=1))


async def _operations(source: Source, found: Transaction) -> tuple[OperationRow, ...]:
    parts: list[tuple[int | None, Participant]] = [(one.branch, one.participant) for one in sorted(found.parts)]
    parts = parts or [(None, one) for one in sorted(found.participants)]
    topics = dict.fromkeys(str(topic_of(one.segment)) for _, one in parts)
    waiting = undecided_of((await source.catalog.read(list(topics)[:TOPICS_MAX])).values())
    committed = found.state is State.COMMITTED
    return tuple(
        OperationRow(
            branch,
            one.segment,
            str(topic_of(one.segment)),
            one.subscription,
            found.counts(branch) if committed and branch is not None else None,
            None if one.subscription else waiting.get(one.segment),
        )
        for branch, one in parts
    )


def timeline(row: TransactionRow, now_ms: int, retention_ms: int) -> tuple[TimelineEvent, ...]:
    """Return what happened to a transaction and what will happen, in the order of time."""
    found = row.found
    wrote, acknowledged = len(row.written), len(row.acknowledged)
    begun = TimelineEvent("Begun", found.created_ms, True, "", "begun")
    done = f"wrote to {_count(wrote, 'segment')}, acknowledged on {_count(acknowledged, 'subscription')}"
    operations = TimelineEvent("Operations", None, bool(wrote or acknowledged), done, "operations")
    if row.is_open:
        is_overdue = now_ms > found.deadline_ms
        then = "its timeout has passed, and a process that sweeps will abort it" if is_overdue else "then it is aborted"
        due = TimelineEvent("Timeout", found.deadline_ms, is_overdue, then, "overdue" if is_overdue else "plain")
        return (begun, operations, due)
    word = found.state.value.capitalize()
    ended = TimelineEvent(
        word, found.finalized_ms, True, "the decision, which never changes", found.state.value.lower()
    )
    if row.operations_left or found.participants:
        left = f"not yet at {_count(len(found.participants), 'participant')}"
        return (begun, ended, TimelineEvent("Settled", None, False, left, "overdue"))
    settled = TimelineEvent("Settled", None, True, "it has taken effect everywhere; the time is not stored", "settled")
    if found.finalized_ms is None:
        return (begun, ended, settled)
    forgotten = TimelineEvent("Forgotten", found.finalized_ms + retention_ms, False, "its record is deleted")
    return (begun, ended, settled, forgotten)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
