"""The first page: the numbers of a system, and what needs attention."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.client import FamilyStatus, Ping
from txnframework.model.transactions import State
from txnframework_console.views.source import Source
from txnframework_console.views.subscriptions import SubscriptionRow, SubscriptionsQuery
from txnframework_console.views.transactions import TransactionRow, transaction_rows

ROWS = 6
HANGS_MS = 60_000
"""The age from which an open or unsettled transaction needs attention."""
GRACE_MS = 5_000
"""How long after its timeout, or after its end, a transaction may be left to the process that sweeps."""


@dataclass(frozen=True, slots=True)
class OverviewView:
    """
    Counts, the transactions that hang, and the subscriptions with the largest lag.

    ``waiting``: messages that wait for an open transaction, and ``lag``: messages that are left, of the topics that
    were read. ``unread``: the number of topics that were not read yet.
    """

    topics: int
    segments: int
    subscriptions: int
    families: tuple[FamilyStatus, ...]
    hanging: tuple[TransactionRow, ...]
    behind: tuple[SubscriptionRow, ...]
    waiting: int
    lag: int
    unread: int
    ping: Ping
    now_ms: int

    @property
    def open_count(self) -> int:
        """The number of open transactions."""
        return sum(one.open_count for one in self.families)

    @property
    def operations_left(self) -> int:
        """The number of unsettled operations of transactions that have ended."""
        return sum(one.operations_left for one in self.families)

    @property
    def is_unsettled(self) -> bool:
        """Whether an ended transaction hangs; operations of one that has just ended are no reason to worry."""
        return any(not one.is_open for one in self.hanging)

    @property
    def oldest_age_ms(self) -> int | None:
        """The age of the oldest open transaction; None: there is none."""
        return max((one.oldest_age_ms for one in self.families if one.oldest_age_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class OverviewQuery:
    """The first page."""

    async def read(self, source: Source) -> OverviewView:
        """Return the numbers; in each reading some more topics are read, until all are known."""
        ping = await source.client.ping()
        families = await source.catalog.families()
        found = await source.client.find_hanging(HANGS_MS, transactions_max=ROWS)
        hanging = await transaction_rows(source, found)
        subscriptions = await SubscriptionsQuery(rows=ROWS).read(source)
        layouts = await source.catalog.layouts()
        samples = [one for name in layouts if (one := source.catalog.sample(name)) is not None]
        return OverviewView(
            len(layouts),
            sum(len(one.active()) for one in layouts.values()),
            sum(len(one.subscriptions) for one in layouts.values()),
            families,
            hanging,
            tuple(one for one in subscriptions.page.rows if one.lag),
            sum(one.undecided for one in samples),
            sum(each.lag.messages for one in samples for each in one.topic.subscriptions),
            subscriptions.unread,
            ping,
            source.now_ms,
        )


def reason_of(row: TransactionRow, now_ms: int) -> str:
    """Return in one clause why a transaction needs attention; empty: it does not."""
    if row.found.state is not State.OPEN:
        is_late = row.operations_left and row.age_ms >= GRACE_MS
        return "ended, and has not taken effect everywhere" if is_late else ""
    if row.owner_lives is False:
        return "open, and its process is gone"
    if now_ms > row.found.deadline_ms + GRACE_MS:
        return "open, and its timeout has passed"
    if row.age_ms >= HANGS_MS:
        return "open for long"
    return ""
