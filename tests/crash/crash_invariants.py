"""Invariants at every moment, after everything has settled, and after everything was collected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import crash_log_family
from crash_scenario import Scenario, drain, read
from crash_story import Story, values_of
from crash_world import Machine, World

from txnframework import Client, Message, State, TransactionNotFound, TxnID
from txnframework.model import TopicName, paths, records
from txnframework.model.layout import Layout, SegmentState, from_record
from txnframework.model.layout_changes import planned_changes

WATCHER = "watcher"


class Invariants:
    """Checks of one world; what the bystander is shown meanwhile goes into the story."""

    def __init__(self, world: World, story: Story, scenario: Scenario) -> None:
        self.world = world
        self.story = story
        self.scenario = scenario
        self._drained: dict[tuple[str, str], list[bytes]] = {}
        self._observers: list[asyncio.Task[None]] = []

    def observe(self, bystander: Machine) -> None:
        """Start observing by the bystander: as a following reader, and with a subscription of its own."""

        async def follow(topic: str) -> None:
            async with await bystander.client.reader(topic, follow=True) as reader:
                async for message in reader:
                    self.story.saw("the bystander's reader", message)

        async def consume(topic: str) -> None:
            async with await bystander.client.consumer(topic, WATCHER, start="earliest") as consumer:
                async for message in consumer:
                    self.story.saw("the bystander's consumer", message)
                    if self.scenario.retention or self.scenario.watcher_acknowledges:
                        await consumer.ack(message)

        for topic in self.scenario.topics:
            self._observers += [bystander.spawn(follow(topic)), bystander.spawn(consume(topic))]
        self.world.loop.advance(0)

    def stop_observing(self, bystander: Machine) -> None:
        """Stop observing, so that the bystander can be closed."""

        async def stop() -> None:
            for observer in self._observers:
                observer.cancel()
            results = await asyncio.gather(*self._observers, return_exceptions=True)
            assert {type(result) for result in results} == {asyncio.CancelledError}, results

        bystander.do(stop())

    # -- at once --------------------------------------------------------------------------------------

    def check_now(self) -> None:
        """Check the space right after a crash, before any repair."""
        self.story.check_promises()
        for topic in self.scenario.topics:
            layout = self._layout(topic)
            for segment in () if layout.is_migrating else layout.segments.values():
                if self._is_sealed(str(layout.name_of(segment.id))):
                    assert segment.children, f"segment {segment.id} of {topic} is sealed and has no children"

    def check_outcomes(self, machine: Machine) -> None:
        """Every query returns the decided outcome."""
        for txn_id, state in self._outcomes(machine).items():
            if state is not State.OPEN:
                self.story.promise(txn_id, state)

    # -- later ----------------------------------------------------------------------------------------

    def check_settled(self, machines: Iterable[Machine], drains: Machine) -> None:
        """Every required effect exists, and no other; no client is blocked; no change of a layout is unfinished."""
        for machine in machines:
            self.check_outcomes(machine)
            self._check_topics(machine)
        self.story.check_promises()
        for topic, subscription in self.scenario.subscriptions:
            messages = drains.do(drain(drains.client, topic, subscription))
            self.story.check_delivered(topic, subscription, messages)
            self._drained[topic, subscription] = values_of(messages)
        for topic in self.scenario.topics:
            self._check_layout(topic)
            for who in ("the bystander's reader", "the bystander's consumer"):
                self.story.check_topic(topic, self.story.seen[who, topic], who)
        self.scenario.check()

    def check_collected(self, machines: Iterable[Machine]) -> None:
        """Nothing remains of ended transactions, and readable and receivable messages are unchanged."""
        left = [record.key.path for record in self.world.records("/txn/", "/txn-op/")]
        left += crash_log_family.left_in_logs(self.world.space)
        assert not left, f"left after collection: {left}"
        for machine in machines:
            self._check_topics(machine)
        *_, last = machines
        for (topic, subscription), before in self._drained.items():
            now = values_of(last.do(drain(last.client, topic, subscription)))
            assert sorted(now) == sorted(before), f"{subscription} received {before}, and later {now}"
        self.story.check_promises()

    # -- parts ----------------------------------------------------------------------------------------

    def _outcomes(self, machine: Machine) -> dict[TxnID, State]:
        async def ask(client: Client) -> dict[TxnID, State]:
            found = {}
            known = {paths.txn_id_of(record.key.path) for record in self.world.records("/txn/")}
            for txn_id in sorted(known if self.world.family == "metadata" else known | {*self.story.decided}):
                try:
                    found[txn_id] = await client.outcome(txn_id)
                except TransactionNotFound:
                    continue  # collected in the meantime
            return found

        return machine.do(ask(machine.client))

    def _check_topics(self, machine: Machine) -> None:
        async def ends(client: Client, layout: Layout) -> list[tuple[str, object, object]]:
            found = []
            for segment in layout.in_order():
                opened = await client.host.segment(str(layout.name_of(segment.id)))
                readable = await opened.buffer.max_read_position()
                found.append((opened.name, readable, (await opened.ledger.tail()).last_confirmed))
            return found

        for topic in self.scenario.topics:
            messages: list[Message] = machine.do(read(machine.client, topic))
            self.story.check_topic(topic, messages, machine.process.name, late=True)
            for name, readable, end in machine.do(ends(machine.client, self._layout(topic))):
                assert readable == end, f"{machine.process.name} is stuck at {readable} of {name}, which ends at {end}"

    def _check_layout(self, topic: str) -> None:
        layout = self._layout(topic)
        assert not planned_changes(layout), f"changes of {topic} were planned and are not done"
        assert not layout.is_migrating, f"the migration of {topic} was decided and is not done"
        cursors = {paths.cursor_of(record.key.path) for record in self.world.records("/cursor/")}
        for segment in layout.segments.values():
            name = str(layout.name_of(segment.id))
            sealed = self._is_sealed(name)
            assert sealed == (segment.state is SegmentState.REPLACED), f"{name} is sealed: {sealed}"
            missing = [one for one in layout.subscriptions if (name, one) not in cursors]
            assert not missing, f"subscriptions without a cursor on {name}: {missing}"

    def _is_sealed(self, segment: str) -> bool:
        """Whether a segment is sealed; one that is only planned has no ledger yet."""
        rows = self.world.space.rows
        return segment in rows.list_names(segment, "", 1) and rows.find(segment).tail().sealed

    def _layout(self, topic: str) -> Layout:
        return self._layout_by(TopicName.parse(topic))

    def _layout_by(self, name: TopicName) -> Layout:
        record = self.world.space.records.get(paths.topic_key(name))
        assert record is not None
        layout = from_record(name, records.decode(records.TopicRecord, record))
        return layout if layout.moved_to is None else self._layout_by(layout.moved_to)
