"""
A mixture of actions, drawn by weights.

Most scenarios use it with different options.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Literal

from txnframework.errors import InvalidInput, TxnFrameworkError
from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import History
from txnframework_simulation.workloads.actions import Actor, MixtureOptions
from txnframework_simulation.workloads.actions.base import Shared, full
from txnframework_simulation.workloads.actions.producers import ATTEMPT
from txnframework_simulation.workloads.cancellation import Cancellation
from txnframework_simulation.workloads.oracles import account_views, account_violations, sends_of
from txnframework_simulation.workloads.recorded_client import RecordedClient
from txnframework_simulation.workloads.workload import ActorContext, Subscribed, Workload

FOLLOWED_MESSAGES = 8
SILENT_ROUNDS = 2
PATIENCE_MS = 2_000


async def follow_a_segment(context: ActorContext, one: Subscribed) -> None:
    """Consume from a segment without other clients, split it, and check that messages to its children arrive."""
    recorded = context.recorded
    layout = await recorded.client.layout(one.topic)
    first = context.chance.choice([segment.id for segment in layout.in_order() if not segment.parents])
    consumer = await recorded.consumer(one.topic, one.name, type=one.type, segment=str(layout.name_of(first)))
    wide = [segment for segment in layout.active() if segment.end > segment.start]
    if wide:
        await recorded.split(one.topic, context.chance.choice(wide).id)
    producer = await recorded.producer(one.topic)
    for number in range(FOLLOWED_MESSAGES):
        await producer.send(recorded.unique(), key=f"followed {number}")
    with suppress(TxnFrameworkError):  # the history contains the error
        await consumer.drain(SILENT_ROUNDS, PATIENCE_MS)
    await consumer.close()


class Mixture(Workload[MixtureOptions]):
    """
    Actors that draw their actions at random.

    It has two additional rules. The sum over all accounts is the same for each client that reads all of them, as
    ``oracles`` describes. At most one of several attempts at one piece of work can be read; each attempt is in a
    branch.
    """

    options_type = MixtureOptions

    def __init__(self, options: MixtureOptions) -> None:
        super().__init__(options)
        self._shared = Shared()
        known = [name for name in dir(Actor) if not name.startswith("_") and callable(getattr(Actor, name))]
        unknown = [name for name in options.actions if name not in known]
        if unknown:
            raise InvalidInput(f"a mixture has no action {unknown[0]!r}; there are {', '.join(known)}")
        if not any(options.actions.values()):
            raise InvalidInput("a mixture needs an action with a weight above zero")
        topics = options.full_topics()
        for one in options.subscriptions:
            if full(one.topic) not in topics:
                raise InvalidInput(f"subscription {one.name!r} is of {one.topic!r}, which is not one of its topics")
            if one.letters is not None and full(one.letters) not in topics:
                raise InvalidInput(f"subscription {one.name!r} has dead letters in {one.letters!r}, which is no topic")
        for name in (*options.deleted, *options.compacted):
            if full(name) not in topics:
                raise InvalidInput(f"{name!r} is to be deleted or compacted, and is not one of the topics")

    @property
    def topics(self) -> dict[str, int]:
        """Those of the options."""
        return self.options.full_topics()

    @property
    def subscriptions(self) -> tuple[Subscribed, ...]:
        """Those of the options."""
        return tuple(Subscribed(full(one.topic), one.name, one.type) for one in self.options.subscriptions)

    @property
    def types(self) -> dict[str, str]:
        """Those of the subscriptions."""
        return {f"subscriptions[{number}].type": one.type for number, one in enumerate(self.options.subscriptions)}

    @property
    def compacted(self) -> tuple[str, ...]:
        """Those of the options."""
        return tuple(map(full, self.options.compacted))

    async def restore(self, recorded: RecordedClient) -> None:
        """Create the deleted topics again, and subscribe to them."""
        for topic, segments in self.topics.items():
            if topic in map(full, self.options.deleted):
                await recorded.create_topic(topic, segments)
                for one in self.subscriptions:
                    if one.topic == topic:
                        await recorded.subscribe(topic, one.name)

    async def finish(self, context: ActorContext) -> None:
        """Compact twice, in random orders, and let a consumer follow the descendants of its segment."""
        for topic in (*self.compacted, *self.compacted):
            await context.attempt(partial(context.recorded.compact, topic, self._order(context)))
        if "consume_segment" in self.options.actions:
            await follow_a_segment(context, context.chance.choice(self.subscriptions))

    def _order(self, context: ActorContext) -> Literal["position", "commit"]:
        return context.chance.choice(self.options.compaction_orders)

    async def run(self, context: ActorContext) -> None:
        """Draw one action after the other."""
        if self.options.cancels:
            context.recorded.cancellation = Cancellation(context.chance, context.environment, self.options.cancels)
        actor = Actor(context, self.options, self._shared)
        await context.repeat({getattr(actor, name): weight for name, weight in self.options.actions.items()})

    def violations(self, history: History) -> list[Violation]:
        """Check the sum of the accounts in each view, and the number of readable attempts at the end."""
        found = account_violations(history, self.topics)
        for view in account_views(history.calls(), self.topics):
            if view.final:
                found += self._attempts(history, view.who, [seen.value for seen in view.seen])
        return found

    def _attempts(self, history: History, client: str, values: list[str]) -> list[Violation]:
        """Return a violation for each piece of work with more than one readable attempt."""
        attempts: dict[str, dict[str, str]] = defaultdict(dict)
        for value in values:
            work, attempted, rest = value.partition(ATTEMPT)
            if attempted:
                attempts[work][rest.partition(ATTEMPT)[0]] = value
        return [
            Violation(
                "of work in several branches one attempt counts",
                f"{client} found of {work} the attempts {' and '.join(sorted(shown))}",
                tuple(event for value in shown.values() for event in sends_of(history, value)),
            )
            for work, shown in attempts.items()
            if len(shown) > 1
        ]
