"""How the stores stand: what is open, what waits to be settled, what nobody may read yet, who has how much to read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from txnframework.broker._inspecting.backlog import Backlog
from txnframework.broker._topics.topics import Topics
from txnframework.environment import Environment
from txnframework.errors import NotFound
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.positions import Limit
from txnframework.model.transactions import OpenQuery

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class FamilyStanding:
    """
    The transactions of one family.

    ``open_count``: those that are open. ``oldest_age_ms``: since the first of them began, None where none is.
    ``operations_left``: operations of transactions that have ended, or are not known, which nobody has settled.
    """

    family: str
    open_count: int
    oldest_age_ms: int | None
    operations_left: int


@dataclass(frozen=True, slots=True)
class TopicStanding:
    """
    The messages of one topic.

    ``undecided``: those by segment that are confirmed and may not be read yet, behind the first open transaction.
    ``lags``: those by subscription that may be read and are not acknowledged.
    """

    topic: str
    undecided: dict[str, int]
    lags: dict[str, int]


@dataclass(frozen=True, slots=True)
class StandingReport:
    """Everything, as it was while it was looked at."""

    families: tuple[FamilyStanding, ...]
    topics: tuple[TopicStanding, ...]


class Standing:
    """Looks at everything, changes nothing. ``coordinators`` returns one of each family."""

    def __init__(
        self,
        coordinators: Callable[[], Awaitable[Iterable[ITransactionCoordinator]]],
        topics: Topics,
        backlog: Backlog,
        environment: Environment,
    ) -> None:
        self._coordinators = coordinators
        self._topics = topics
        self._backlog = backlog
        self._environment = environment

    async def report(self) -> StandingReport:
        """Return how everything stands; it takes as long as there are open transactions, segments and subscriptions."""
        families = [await self._family(coordinator) for coordinator in await self._coordinators()]
        topics = []
        for topic in await self._topics.list():
            try:
                topics.append(await self._topic(await self._topics.layout(topic)))
            except NotFound:
                continue  # deleted, or changed, while we looked
        return StandingReport(tuple(families), tuple(topics))

    async def _family(self, coordinator: ITransactionCoordinator) -> FamilyStanding:
        open_count, first_ms = 0, None
        after: TxnID | None = None
        while page := await coordinator.list_open(OpenQuery(0, after, Limit(_PAGE))):
            open_count += len(page)
            began_ms = min(one.created_ms for one in page)
            first_ms = began_ms if first_ms is None else min(first_ms, began_ms)
            if len(page) < _PAGE:
                break
            after = page[-1].txn_id
        age_ms = None if first_ms is None else max(0, self._environment.now_ms() - first_ms)
        return FamilyStanding(coordinator.family, open_count, age_ms, await _operations_left(coordinator))

    async def _topic(self, layout: Layout) -> TopicStanding:
        undecided = await self._backlog.undecided(layout)
        lags = {name: (await self._backlog.lag(layout, name)).messages for name in layout.subscriptions}
        return TopicStanding(str(layout.topic), undecided, lags)


async def _operations_left(coordinator: ITransactionCoordinator) -> int:
    left = 0
    after: TxnID | None = None
    while page := await coordinator.outstanding(after, Limit(_PAGE)):
        left += sum(one.operations for one in page)
        after = page[-1].txn_id
    return left
