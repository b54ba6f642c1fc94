"""Base of all actors of a mixture: its options, its topics and subscriptions, and the state that its process shares."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from txnframework.client import DeadLetter, MessageID, Transaction
from txnframework.model.names import PERSISTENT, parse_name
from txnframework_simulation.history import MIGRATING
from txnframework_simulation.workloads.workload import NAMESPACE, ActorContext, Options

REMEMBERED_MAX = 100
TIMEOUTS_MS = (1_500, 5_000, 10_000)


class SubscriptionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A subscription of a mixture. ``type``: the type of all its consumers. ``moved``: actions may seek or delete it.

    ``letters``: its dead-letter topic, for messages after ``redeliveries_max`` redeliveries.
    """

    topic: str
    name: str
    type: str = "shared"
    moved: bool = True
    letters: str | None = None
    redeliveries_max: Annotated[int, Meta(ge=0)] = 2

    def dead_letter(self) -> DeadLetter | None:
        """Return the dead-letter option of its consumers."""
        return None if self.letters is None else DeadLetter(self.redeliveries_max, full(self.letters))


class MixtureOptions(Options, frozen=True, kw_only=True):
    """
    Options of a mixture.

    ``topics``: the initial number of segments by topic; a name without a scheme is in ``topic://public/default``.
    ``actions``: weights of the actions. ``aborts`` and ``forgotten``: shares of transactions that are aborted, or left
    to their timeout. ``hesitates_ms``: the maximum wait before acknowledging in a transaction, and before ending it.
    ``ends_at_once``: the share of contending transactions that end without waiting for the others. ``ranges``: the
    share of contending acknowledgments that are ranges. ``at_once``: the share of them that are a transaction in one
    call. ``cancels``: the share of cancelled calls. ``twins``: the share
    of consumers that share a name. ``deleted``: the topics that are deleted and created again. ``compacted``: the
    topics that are compacted, in one of ``compaction_orders``.
    """

    topics: Annotated[dict[str, Annotated[int, Meta(ge=1)]], Meta(min_length=1)]
    actions: dict[str, Annotated[float, Meta(ge=0)]]
    subscriptions: tuple[SubscriptionOptions, ...] = ()
    keys: Annotated[int, Meta(ge=1)] = 6
    segments_max: Annotated[int, Meta(ge=1)] = 6
    aborts: Annotated[float, Meta(ge=0, le=1)] = 0.15
    forgotten: Annotated[float, Meta(ge=0, le=1)] = 0.05
    hesitates_ms: Annotated[int, Meta(ge=0)] = 0
    ends_at_once: Annotated[float, Meta(ge=0, le=1)] = 0.0
    ranges: Annotated[float, Meta(ge=0, le=1)] = 0.0
    at_once: Annotated[float, Meta(ge=0, le=1)] = 0.0
    cancels: Annotated[float, Meta(ge=0, le=1)] = 0.0
    twins: Annotated[float, Meta(ge=0, le=1)] = 0.0
    deleted: tuple[str, ...] = ()
    compacted: tuple[str, ...] = ()
    compaction_orders: Annotated[tuple[Literal["position", "commit"], ...], Meta(min_length=1)] = ("position",)

    def full_topics(self) -> dict[str, int]:
        """Return the topics by their full names."""
        return {full(name): segments for name, segments in self.topics.items()}


@dataclass
class Shared:
    """
    Transactions and messages that the actors of one process share.

    They are lost with the process.
    """

    transactions: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MAX))
    messages: deque[MessageID] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MAX))


class ActorBase:
    """The common base class of actors."""

    def __init__(self, context: ActorContext, options: MixtureOptions, shared: Shared) -> None:
        self.context = context
        self.options = options
        self.shared = shared
        self.chance = context.chance
        self.recorded = context.recorded
        letters = {full(one.letters) for one in options.subscriptions if one.letters is not None}
        self.topics = [topic for topic in options.full_topics() if topic not in letters]
        self.domains: dict[str, list[str]] = {}
        for topic in self.topics:
            domain = "persistent" if topic.startswith("persistent:") else "segment"
            self.domains.setdefault(domain, []).append(topic)
        self.migrating = [one for one in self.domains.get(PERSISTENT, ()) if is_migrating(one)]

    def topic(self) -> str:
        """Return one of the topics."""
        return self.chance.choice(self.topics)

    def key(self) -> str:
        """Return one of the keys."""
        return f"k{self.chance.randrange(self.options.keys)}"

    async def begin(self, domain: str) -> Transaction:
        """Begin a transaction of a domain."""
        timeout_ms = self.chance.choice(TIMEOUTS_MS)
        if domain == PERSISTENT and self.migrating:
            domain = await self.recorded.client.transaction_domain(self.migrating[0])
        txn = await self.recorded.begin(domain=domain, timeout_ms=timeout_ms)
        self.shared.transactions.append(str(txn.id))
        return txn

    async def end(self, txn: Transaction, branches: tuple[int, ...] = ()) -> bool:
        """Commit, abort, or leave the transaction open; return whether it was committed."""
        drawn = self.chance.random()
        if drawn < self.options.forgotten:
            return False
        if drawn < self.options.forgotten + self.options.aborts:
            await self.recorded.abort(txn)
            return False
        await self.recorded.commit(txn, branches)
        return True

    async def hesitate(self) -> None:
        """Wait, so that other actors may do the same in the meantime."""
        if self.options.hesitates_ms:
            await self.context.wait(self.options.hesitates_ms)

    def any_domain(self) -> str:
        """Return a domain that has topics."""
        return self.chance.choice(list(self.domains))


def is_migrating(topic: str) -> bool:
    """Return whether actions may migrate a topic: its namespace says so."""
    name = parse_name(topic)
    return (name.tenant, name.namespace) == MIGRATING


def full(topic: str) -> str:
    """Return a topic's full name."""
    return str(parse_name(topic if "://" in topic else f"{NAMESPACE}/{topic}"))
