"""Stories of consumers and subscriptions."""

from __future__ import annotations

import contextlib

from crash_story import Due

from cancelling.stage import FAMILIES, QUIET_MS, SUBSCRIPTION, Stage
from cancelling.stories import Story
from txnframework import Client, DeadLetter, Message, Transaction
from txnframework.errors import (
    Closed,
    ReceiveTimeout,
    SubscriptionNotFound,
    TransactionConflict,
    TransactionHasFailedOperations,
)

EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED = "exclusive", "failover", "shared", "key_shared"


class OfType(Story):
    """A story that runs for several types of subscription."""

    def __init__(self, type: str = EXCLUSIVE) -> None:
        self.type = type

    @property
    def name(self) -> str:
        return f"{type(self).__name__}-{self.type}"


class Join(OfType):
    covers = ("Client.consumer", "Consumer.join", "Consumer.__aenter__")

    async def call(self, stage: Stage) -> None:
        stage.type = self.type
        stage.consumer = await stage.client.consumer(stage.topic, SUBSCRIPTION, type=self.type)

    async def repeat(self, stage: Stage) -> None:
        if stage.consumer is None:
            await self.call(stage)


class JoinSeveral(Join):
    """A consumer of two topics."""

    covers = ("Client.consumer",)

    async def arrange(self, stage: Stage) -> None:
        stage.notes["second"] = second = stage.name("second")
        await stage.client.create_topic(second)

    async def call(self, stage: Stage) -> None:
        topics = (stage.topic, stage.notes["second"])
        stage.consumer = await stage.client.consumer(topics, SUBSCRIPTION, start="earliest")


class CloseConsumer(OfType):
    covers = ("Consumer.close", "Consumer.__aexit__")
    sampled = ("metadata", "marker")

    async def arrange(self, stage: Stage) -> None:
        await stage.join(type=self.type)

    async def call(self, stage: Stage) -> None:
        async with stage.joined:
            pass


class CloseConsumerOfMany(CloseConsumer):
    """A consumer of several segments, because they were split."""

    families = ("metadata",)

    async def arrange(self, stage: Stage) -> None:
        await stage.client.split(stage.topic, 0)
        await stage.send(b"3", b"4", b"5", b"6")
        await stage.join(7, type=self.type)


class CloseWithDeadLetters(Story):
    covers = ("Consumer.close",)

    async def arrange(self, stage: Stage) -> None:
        stage.notes["dead"] = stage.name("dead")
        stage.consumer = await stage.client.consumer(
            stage.topic, SUBSCRIPTION, dead_letter=DeadLetter(0, stage.notes["dead"])
        )
        first = await stage.consumer.receive(timeout_ms=60_000)
        assert first.value == b"0"
        await stage.consumer.redeliver_unacknowledged()
        await stage.consumer.receive(timeout_ms=60_000)

    async def call(self, stage: Stage) -> None:
        await stage.joined.close()

    def may_happen(self, stage: Stage) -> None:
        stage.acked[b"0"] = Due.MAY

    async def check(self, stage: Stage) -> None:
        """A message is either a dead letter or delivered; redeliveries of uncounted messages are delivered."""
        await stage.check_topic()


class Receive(OfType):
    """Messages that a cancelled receive did not return go to the next receive; returned ones are acknowledged."""

    covers = ("Consumer.receive", "Consumer.receive_many")

    async def arrange(self, stage: Stage) -> None:
        await stage.join(0, type=self.type)
        stage.notes["got"] = []

    async def call(self, stage: Stage) -> None:
        got: list[Message] = stage.notes["got"]
        while len(got) < 3:
            if got:
                got += await stage.joined.receive_many(messages_max=2, timeout_ms=60_000)
            else:
                got.append(await stage.joined.receive(timeout_ms=60_000))

    async def repeat(self, stage: Stage) -> None:
        await self.call(stage)
        values = [message.value for message in stage.notes["got"]][:3]
        assert values == [b"0", b"1", b"2"], f"received {values}"


class Iterate(Story):
    covers = ("Consumer.__aiter__",)

    async def arrange(self, stage: Stage) -> None:
        await stage.join(0)
        stage.notes["got"] = []

    async def call(self, stage: Stage) -> None:
        got: list[bytes] = stage.notes["got"]
        if len(got) >= 3:
            return
        async for message in stage.joined:
            got.append(message.value)
            if len(got) >= 3:
                return

    async def repeat(self, stage: Stage) -> None:
        await self.call(stage)
        assert stage.notes["got"][:3] == [b"0", b"1", b"2"], stage.notes["got"]


class Ack(OfType):
    covers = ("Consumer.ack",)
    acks = (b"0", b"1")

    async def arrange(self, stage: Stage) -> None:
        await stage.join(type=self.type)

    async def call(self, stage: Stage) -> None:
        await stage.joined.ack(*stage.messages[:2])


class AckCumulative(Story):
    covers = ("Consumer.ack_cumulative",)
    acks = (b"0", b"1")

    async def arrange(self, stage: Stage) -> None:
        await stage.join()

    async def call(self, stage: Stage) -> None:
        await stage.joined.ack_cumulative(stage.messages[1])


class AckInTransaction(Story):
    """A cancelled acknowledgment is not committed."""

    covers = ("Consumer.ack",)
    sampled = FAMILIES
    leaves_open = True
    reports = (TransactionConflict,)

    async def arrange(self, stage: Stage) -> None:
        await stage.join()
        await stage.begin()
        stage.acked_by_txn[b"1"] = stage.txn

    async def call(self, stage: Stage) -> None:
        await stage.joined.ack(stage.messages[1], txn=stage.txn)

    async def leave(self, stage: Stage) -> None:
        with contextlib.suppress(TransactionHasFailedOperations):
            await stage.txn.commit()
        await super().leave(stage)


class AckCumulativeInTransaction(AckInTransaction):
    covers = ("Consumer.ack_cumulative",)

    async def arrange(self, stage: Stage) -> None:
        await stage.join()
        await stage.begin(filled=False)
        await stage.producer.send(b"in", txn=stage.txn)
        stage.by_txn[b"in"] = stage.txn
        stage.acked_by_txn |= {b"0": stage.txn, b"1": stage.txn}

    async def call(self, stage: Stage) -> None:
        await stage.joined.ack_cumulative(stage.messages[1], txn=stage.txn)


class RunHandler(OfType):
    """A cancelled run leaves its consumer open: the next run handles uncommitted messages."""

    covers = ("Consumer.run", "Consumer.run_batches")
    sampled = ("metadata", "marker")
    acks = (b"0", b"1", b"2")
    batch = 1

    async def arrange(self, stage: Stage) -> None:
        await stage.join(0, type=self.type)
        stage.notes["last"] = b"2"

    async def call(self, stage: Stage) -> None:
        async def handler(messages: tuple[Message, ...], _: Transaction) -> None:
            stage.acked |= {one.value: Due.MAY for one in messages}
            if any(one.value == stage.notes["last"] for one in messages):
                stage.joined.stop()

        if self.batch > 1:
            await stage.joined.run_batches(handler, messages_max=self.batch)
        else:
            await stage.joined.run(lambda message, txn: handler((message,), txn))

    async def repeat(self, stage: Stage) -> None:
        # What the first run had in a commit may come again late, after this one.
        stage.notes["last"] = b"last"
        await stage.send(b"last")
        await self.call(stage)

    def has_happened(self, stage: Stage) -> None:
        stage.acked[b"last"] = Due.MUST


class RunHandlerOfBatches(RunHandler):
    batch = 2


class PausedRun(RunHandler):
    """A run that its handler pauses and resumes."""

    covers = ("Consumer.run",)

    async def call(self, stage: Stage) -> None:
        async def handler(message: Message, _: Transaction) -> None:
            stage.acked[message.value] = Due.MAY
            stage.joined.pause()
            stage.joined.resume()
            if message.value == stage.notes["last"]:
                stage.joined.stop()

        await stage.joined.run(handler, concurrency=2)


class Nack(Story):
    covers = ("Consumer.nack", "Consumer.redeliver_unacknowledged")

    async def arrange(self, stage: Stage) -> None:
        await stage.join()

    async def call(self, stage: Stage) -> None:
        await stage.joined.nack(stage.messages[0].id)
        await stage.joined.redeliver_unacknowledged()

    async def repeat(self, stage: Stage) -> None:
        await self.call(stage)
        again: set[bytes] = set()
        while len(again) < 3:
            again.add((await stage.joined.receive(timeout_ms=60_000)).value)


class Seek(OfType):
    """A seek to the beginning: the same consumer receives everything again, even after a cancellation."""

    covers = ("Consumer.seek",)
    sampled = ("metadata", "marker")

    async def arrange(self, stage: Stage) -> None:
        await stage.join(type=self.type)
        await stage.joined.ack(*stage.messages)
        stage.acked |= {message.value: Due.MUST for message in stage.messages}

    async def call(self, stage: Stage) -> None:
        await stage.joined.seek("earliest")

    def may_happen(self, stage: Stage) -> None:
        stage.acked |= dict.fromkeys(stage.acked, Due.MAY)

    def has_happened(self, stage: Stage) -> None:
        stage.acked.clear()

    async def repeat(self, stage: Stage) -> None:
        await self.call(stage)
        want, got = {message.value for message in stage.messages}, set()
        try:
            while want - got:
                got.add((await stage.joined.receive(timeout_ms=60_000)).value)
        except ReceiveTimeout as error:
            raise AssertionError(f"received {got} after seeking again, not {want - got}") from error


class SeekSplit(Seek):
    """The segment was split, finished and left; a seek makes its children follow it again."""

    families = ("metadata",)

    async def arrange(self, stage: Stage) -> None:
        await stage.client.split(stage.topic, 0)
        await stage.send(b"3", b"4", b"5", b"6")
        await stage.join(0, type=self.type)
        got: list[Message] = []
        while len(got) < 7:
            got.append(await stage.joined.receive(timeout_ms=60_000))
            await stage.joined.ack(got[-1])
        stage.messages = tuple(got)
        stage.acked |= {message.value: Due.MUST for message in stage.messages}
        with_parent_left = stage.joined._segments.feeds
        environment = stage.client.host.environment
        while not any(feed.finished for feed in with_parent_left.values()):
            await environment.sleep_until(environment.now_ms() + 1)


class SeekAndClose(SeekSplit):
    """A consumer that is closed after its seek was cancelled leaves the subscription."""

    async def repeat(self, stage: Stage) -> None:
        await stage.joined.close()

    def has_happened(self, stage: Stage) -> None:
        """The subscription may not have been moved."""


class SeekByClient(Seek):
    covers = ("Client.seek",)

    async def call(self, stage: Stage) -> None:
        await stage.client.seek(stage.topic, SUBSCRIPTION, "earliest")


class Subscribe(Story):
    covers = ("Client.subscribe",)

    async def call(self, stage: Stage) -> None:
        await stage.client.subscribe(stage.topic, "late", start="earliest")

    async def repeat(self, stage: Stage) -> None:
        await self.call(stage)
        async with await stage.client.consumer(stage.topic, "late") as consumer:
            got = [(await consumer.receive(timeout_ms=60_000)).value for _ in range(3)]
        assert got == [b"0", b"1", b"2"], got


class Unsubscribe(Story):
    """Once begun, the deletion completes, and a new subscription of the name receives everything."""

    covers = ("Client.unsubscribe",)
    reports = (SubscriptionNotFound,)

    async def arrange(self, stage: Stage) -> None:
        await stage.join()
        await stage.joined.ack(stage.messages[0])
        await stage.joined.close()
        stage.consumer = None
        stage.acked[b"0"] = Due.MAY

    async def call(self, stage: Stage) -> None:
        await stage.client.unsubscribe(stage.topic, SUBSCRIPTION)

    async def check_subscription(self, stage: Stage, client: Client, at_once: bool) -> None:
        await client.subscribe(stage.topic, SUBSCRIPTION, start="earliest")
        await super().check_subscription(stage, client, at_once)

    def has_happened(self, stage: Stage) -> None:
        stage.acked.clear()


class IterateUntilClosed(Story):
    """A cancelled receive of an idle consumer leaves it usable."""

    covers = ("Consumer.receive",)

    async def arrange(self, stage: Stage) -> None:
        await stage.join()

    async def call(self, stage: Stage) -> None:
        try:
            await stage.joined.receive(timeout_ms=QUIET_MS)
        except (ReceiveTimeout, Closed):
            return

    async def repeat(self, stage: Stage) -> None:
        await stage.send(b"late")
        while (await stage.joined.receive(timeout_ms=60_000)).value != b"late":
            pass


STORIES: tuple[Story, ...] = (
    *(Join(type) for type in (EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED)),
    JoinSeveral(),
    *(CloseConsumer(type) for type in (EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED)),
    *(CloseConsumerOfMany(type) for type in (EXCLUSIVE, SHARED)),
    CloseWithDeadLetters(),
    Receive(),
    Iterate(),
    IterateUntilClosed(),
    *(Ack(type) for type in (EXCLUSIVE, SHARED)),
    AckCumulative(),
    AckInTransaction(),
    AckCumulativeInTransaction(),
    *(RunHandler(type) for type in (EXCLUSIVE, SHARED, KEY_SHARED)),
    RunHandlerOfBatches(),
    PausedRun(),
    Nack(),
    *(Seek(type) for type in (EXCLUSIVE, SHARED)),
    *(SeekSplit(type) for type in (EXCLUSIVE, FAILOVER, SHARED)),
    SeekAndClose(),
    SeekByClient(),
    Subscribe(),
    Unsubscribe(),
)
