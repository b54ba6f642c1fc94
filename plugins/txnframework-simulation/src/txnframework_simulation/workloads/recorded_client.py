"""A client that records each of its operations in a history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

from txnframework.broker import Start
from txnframework.client import (
    Client,
    Consumer,
    DeadLetter,
    JoinedTransaction,
    Message,
    MessageID,
    Producer,
    Transaction,
    TransactionPart,
)
from txnframework.errors import ReceiveTimeout
from txnframework.model.names import TOPIC, TopicName
from txnframework.model.transactions import State
from txnframework_simulation import history
from txnframework_simulation.history import (
    NULL,
    NULL_HEADER,
    UNNAMED,
    AckedMessage,
    MessagePosition,
    Recorder,
    SeenMessage,
)
from txnframework_simulation.workloads.cancellation import Cancellation


class RecordedClient:
    """A client for workloads that records its operations; ``name`` is unique within a run."""

    def __init__(self, client: Client, recorder: Recorder, name: str) -> None:
        self.client = client
        self.name = name
        self.cancellation: Cancellation | None = None
        """
        Cancels calls.

        None: no call is cancelled.
        """
        self._recorder = recorder
        self._numbers = count(1)

    def unique(self) -> str:
        """Return a text that is unique within the run."""
        return f"{self.name}.{next(self._numbers)}"

    async def record(self, operation: history.Operation, work: Any, reply: Any = lambda _: history.Done()) -> Any:
        """Do one operation and record its outcome."""
        return await self._recorder.call(self.name, operation, lambda: self.cancellable(work), reply)

    async def cancellable(self, work: Any) -> Any:
        """Run a call that may be cancelled, recorded or not."""
        return await (work() if self.cancellation is None else self.cancellation.run(work))

    def invoke(self, operation: history.Operation) -> history.PendingCall:
        """Record the start of an operation whose outcome is known only later."""
        return self._recorder.invoke(self.name, operation)

    # -- transactions ---------------------------------------------------------------------------------

    async def begin(self, **options: Any) -> Transaction:
        """Begin a transaction."""
        txn = self.client.transaction(**options)
        await self.record(history.Begin(), txn.begin, lambda _: history.Begun(str(txn.id)))
        return txn

    async def join(self, txn: str) -> JoinedTransaction:
        """Join a transaction of another client."""

        async def join() -> JoinedTransaction:
            return self.client.join(txn)

        joined: JoinedTransaction = await self.record(history.Join(txn), join, lambda made: history.Joined(made.branch))
        return joined

    async def commit(self, txn: Transaction, branches: Iterable[int] = ()) -> None:
        """Commit; ``branches`` count in addition to branch 0."""
        counting = tuple(branches)
        await self.record(history.Commit(str(txn.id), counting), lambda: txn.commit(counting))

    async def commit_by_id(self, txn: str) -> None:
        """Commit a transaction whose owner may be sending."""
        await self.record(history.Commit(txn, by_id=True), lambda: self.client.commit(txn))

    async def abort(self, txn: Transaction) -> None:
        """Abort."""
        await self.record(history.Abort(str(txn.id)), txn.abort)

    async def outcome(self, txn: str) -> State:
        """Ask for the outcome of a transaction."""
        state: State = await self.record(
            history.AskOutcome(txn), lambda: self.client.outcome(txn), lambda found: history.Outcome(found.value)
        )
        return state

    async def transact(
        self,
        sends: Sequence[tuple[RecordedProducer, str, str]] = (),
        acks: Sequence[tuple[RecordedConsumer, tuple[Message, ...]]] = (),
        timeout_ms: int | None = None,
        commit_with: object | None = None,
    ) -> tuple[MessageID, ...]:
        """
        Send values with keys, and acknowledge messages, in one call, which is recorded by its parts.

        The call may commit at any time, so all parts begin with it, and end with it in the same way.
        """
        name = f"{UNNAMED}{self.unique()}"
        planned = [producer.producer.outgoing(value.encode(), key=key.encode()) for producer, value, key in sends]
        acknowledging = [consumer.consumer.acknowledging(*messages) for consumer, messages in acks]
        self.invoke(history.Begin()).ok(history.Begun(name))
        sending = [self.invoke(producer.sending(value, key, (name, 0), None)) for producer, value, key in sends]
        ending = [self.invoke(consumer.acknowledging(messages, False, (name, 0))) for consumer, messages in acks]
        ending.append(self.invoke(history.Commit(name)))
        try:
            sent: tuple[MessageID, ...] = await self.cancellable(
                lambda: self.client.transact(*planned, *acknowledging, timeout_ms=timeout_ms, commit_with=commit_with)
            )
        except BaseException as error:
            for one in (*sending, *ending):
                one.raised(error)
            raise
        for one, at in zip(sending, sent, strict=True):
            one.ok(history.Sent(MessagePosition.of(at)))
        for one in ending:
            one.ok()
        return sent

    # -- producers, consumers, readers ----------------------------------------------------------------

    async def producer(self, topic: str, name: str | None = None) -> RecordedProducer:
        """
        Open a producer.

        With a ``name``, its sends may be repeated under their sequence ids.
        """
        return RecordedProducer(self, await self.client.producer(topic, name=name), topic)

    async def consumer(
        self,
        topics: str | tuple[str, ...],
        subscription: str,
        *,
        type: str = "exclusive",
        start: Start = "earliest",
        segment: str | None = None,
        called: str | None = None,
        dead_letter: DeadLetter | None = None,
    ) -> RecordedConsumer:
        """
        Join a subscription of topics. ``segment``: only this segment and its descendants.

        ``called``: a name that other consumers may share. In the history each consumer has a unique name.
        """
        names = (topics,) if isinstance(topics, str) else topics
        name = self.unique()
        letters = None if dead_letter is None else str(dead_letter.topic)
        most = 0 if dead_letter is None else dead_letter.redeliveries_max
        joining = history.Consume(names, subscription, name, type, str(start), letters, most, segment)
        options: dict[str, Any] = {"type": type, "start": start, "name": called or name, "dead_letter": dead_letter}
        consumer = await self.record(joining, lambda: self.client.consumer(segment or topics, subscription, **options))
        return RecordedConsumer(self, consumer, name)

    async def read(self, topic: str, reader: str = "") -> tuple[Message, ...]:
        """Read a topic from its beginning to its current end; ``reader``: a name that is unique within a run."""

        async def read() -> tuple[Message, ...]:
            # The reader is opened within the call, so it must return all messages that counted before the call.
            async with await self.client.reader(topic) as opened:
                return tuple([message async for message in opened])

        asked = history.Read(topic, reader or self.unique(), whole=True)
        found: tuple[Message, ...] = await self.record(asked, read, _received)
        return found

    async def read_snapshot(self, topics: Sequence[str]) -> tuple[Message, ...]:
        """Take a snapshot of topics, and read all of them in it."""

        async def read() -> tuple[Message, ...]:
            snapshot = await self.client.snapshot(*topics)
            found: list[Message] = []
            for topic in topics:
                async with await snapshot.reader(topic) as opened:
                    found += [message async for message in opened]
            return tuple(found)

        messages: tuple[Message, ...] = await self.record(history.ReadSnapshot(tuple(topics)), read, _received)
        return messages

    async def read_compacted(self, topic: str) -> tuple[Message, ...]:
        """Read the compacted messages of a topic and all later ones, to its current end."""

        async def read() -> tuple[Message, ...]:
            async with await self.client.reader(topic, compacted=True) as opened:
                return tuple([message async for message in opened])

        asked = history.Read(topic, self.unique(), compacted=True, whole=True)
        found: tuple[Message, ...] = await self.record(asked, read, _received)
        return found

    # -- topics and subscriptions ---------------------------------------------------------------------

    async def subscribe(self, topic: str, subscription: str, start: Start = "earliest") -> None:
        """Make a subscription."""
        made = history.Subscribe(topic, subscription, str(start))
        await self.record(made, lambda: self.client.subscribe(topic, subscription, start=start))

    async def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a subscription."""
        gone = history.Unsubscribe(topic, subscription)
        await self.record(gone, lambda: self.client.unsubscribe(topic, subscription))

    async def seek(self, topic: str, subscription: str, to: MessageID | str) -> None:
        """Move a subscription to a message, to ``earliest`` or to ``latest``."""
        moved = (
            history.Seek(topic, subscription, to)
            if isinstance(to, str)
            else history.Seek(topic, subscription, "message", MessagePosition.of(to))
        )
        await self.record(moved, lambda: self.client.seek(topic, subscription, to))  # type: ignore[arg-type]

    async def ask_ack(self, subscription: str, message: MessageID) -> None:
        """Ask whether a message is acknowledged on a subscription."""
        await self.record(
            history.AskAck(subscription, MessagePosition.of(message)),
            lambda: self.client.ack_status(subscription, message),
            lambda found: history.AckFound(found.state.name, None if found.txn_id is None else str(found.txn_id)),
        )

    async def split(self, topic: str, segment: int) -> None:
        """Split a segment."""
        await self.record(history.Split(topic, segment), lambda: self.client.split(topic, segment), history.Changed)

    async def merge(self, topic: str, segment: int, other: int) -> None:
        """Merge two segments."""
        merged = history.Merge(topic, segment, other)
        await self.record(merged, lambda: self.client.merge(topic, segment, other), lambda new: history.Changed((new,)))

    async def migrate(self, topic: str, wait_ms: int) -> None:
        """Migrate a ``persistent://`` topic to the ``topic://`` topic of the same name, or continue its migration."""

        async def work() -> None:
            old = TopicName.parse(topic)
            await self.client.topics.migrations.migrate(old, replace(old, domain=TOPIC), wait_ms)

        await self.record(history.Migrate(topic), work)

    async def withdraw_migration(self, topic: str) -> None:
        """Withdraw the planned migration of a topic, if there is one."""

        async def work() -> bool:
            present = (await self.client.topics.current_name(TopicName.parse(topic))).topic
            return await self.client.topics.migrations.withdraw(present)

        await self.record(history.Migrate(topic, False), work)

    async def create_topic(self, topic: str, segments: int = 1) -> None:
        """Create a topic if it does not exist."""
        made = history.CreateTopic(topic)
        await self.record(made, lambda: self.client.create_topic(topic, segments=segments, exist_ok=True))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, even if it is in use."""
        await self.record(history.DeleteTopic(topic), lambda: self.client.delete_topic(topic, force=True))

    async def compact(self, topic: str, order: Literal["position", "commit"]) -> None:
        """Keep the last message of each key."""
        await self.record(history.Compact(topic, order), lambda: self.client.compact(topic, order=order))

    async def trim(self, topic: str) -> None:
        """Remove the messages that retention does not keep, in all topics."""
        await self.record(history.Trim(topic), self.client.maintain)


class RecordedProducer:
    """A producer whose sends are recorded."""

    def __init__(self, recorded: RecordedClient, producer: Producer, topic: str) -> None:
        self.producer = producer
        self._recorded = recorded
        self._topic = topic

    async def send(
        self, value: str, *, key: str | None = None, sequence: int | None = None, txn: TransactionPart | None = None
    ) -> MessageID:
        """Send one message."""
        encoded = None if key is None else key.encode()
        sent: MessageID = await self._recorded.record(
            self.sending(value, key, _part(txn), sequence),
            lambda: self.producer.send(value.encode(), key=encoded, sequence_id=sequence, txn=txn),
            lambda at: history.Sent(MessagePosition.of(at)),
        )
        return sent

    async def send_null(self, name: str, *, key: str) -> MessageID:
        """
        Send a null, which deletes its key.

        A header contains its name.
        """
        value = f"{NULL}{name}"
        sent: MessageID = await self._recorded.record(
            self.sending(value, key, None, None),
            lambda: self.producer.send(None, key=key.encode(), headers={NULL_HEADER: value.encode()}),
            lambda at: history.Sent(MessagePosition.of(at)),
        )
        return sent

    async def send_many(
        self, values: Sequence[str], *, key: str | None = None, txn: TransactionPart | None = None
    ) -> tuple[MessageID, ...]:
        """Send several messages in one call; if it fails, the outcome of each is unknown."""
        asked = [self._recorded.invoke(self.sending(value, key, _part(txn), None)) for value in values]
        encoded = None if key is None else key.encode()
        contents = [value.encode() for value in values]
        try:
            sent: tuple[MessageID, ...] = await self._recorded.cancellable(
                lambda: self.producer.send_many(contents, key=encoded, txn=txn)
            )
        except BaseException as error:
            for one in asked:
                one.unknown(f"{type(error).__name__}: {error}")
            raise
        for one, at in zip(asked, sent, strict=True):
            one.ok(history.Sent(MessagePosition.of(at)))
        return sent

    def sending(self, value: str, key: str | None, part: tuple[str, int] | None, sequence: int | None) -> history.Send:
        """Return the operation that sends a value; ``part``: a transaction and a branch."""
        named, branch = part or (None, 0)
        return history.Send(self._topic, value, key, named, branch, self.producer.name, sequence)

    async def close(self) -> None:
        """Let go."""
        await self.producer.close()


class RecordedConsumer:
    """A consumer whose receiving and acknowledging are recorded."""

    def __init__(self, recorded: RecordedClient, consumer: Consumer, name: str) -> None:
        self.consumer = consumer
        self.name = name
        """The name of the consumer in the history."""
        self._recorded = recorded

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return self.consumer.subscription

    async def receive(
        self, messages_max: int, timeout_ms: int, txn: TransactionPart | None = None
    ) -> tuple[Message, ...]:
        """Return the messages that arrive in time, possibly none."""

        async def receive() -> tuple[Message, ...]:
            try:
                return await self.consumer.receive_many(messages_max=messages_max, timeout_ms=timeout_ms)
            except ReceiveTimeout:
                return ()

        asked = history.Receive(self.subscription, self.name, None if txn is None else str(txn.id))
        received: tuple[Message, ...] = await self._recorded.record(asked, receive, _received)
        return received

    async def ack(self, *messages: Message, txn: TransactionPart | None = None) -> None:
        """Acknowledge messages one by one."""
        await self._acknowledge(messages, False, txn, lambda: self.consumer.ack(*messages, txn=txn))

    async def ack_cumulative(self, message: Message, txn: TransactionPart | None = None) -> None:
        """Acknowledge a message and everything before it."""
        await self._acknowledge((message,), True, txn, lambda: self.consumer.ack_cumulative(message, txn=txn))

    async def close(self) -> None:
        """Leave."""
        await self._recorded.record(history.Leave(self.subscription, self.name), self.consumer.close)

    async def nack(self, *messages: Message) -> None:
        """Ask for messages again, later."""
        await self._recorded.cancellable(lambda: self.consumer.nack(*messages))

    async def redeliver_unacknowledged(self) -> None:
        """Ask for the redelivery of all unacknowledged messages."""
        asked = history.Redeliver(self.subscription, self.name)
        await self._recorded.record(asked, self.consumer.redeliver_unacknowledged)

    async def drain(self, silent: int, patience_ms: int) -> None:
        """Receive until several receives in a row have returned no message."""

        async def receive() -> tuple[Message, ...]:
            came: list[Message] = []
            rounds = 0
            while rounds < silent:
                try:
                    came += await self.consumer.receive_many(messages_max=100, timeout_ms=patience_ms)
                except ReceiveTimeout:
                    rounds += 1
            return tuple(came)

        asked = history.DrainConsumer(self.subscription, self.name)
        await self._recorded.record(asked, receive, lambda found: history.Drained(tuple(map(SeenMessage.of, found))))

    async def _acknowledge(
        self, messages: tuple[Message, ...], cumulative: bool, txn: TransactionPart | None, work: Any
    ) -> None:
        await self._recorded.record(self.acknowledging(messages, cumulative, _part(txn)), work)

    def acknowledging(
        self, messages: tuple[Message, ...], cumulative: bool, part: tuple[str, int] | None
    ) -> history.Acknowledge:
        """Return the operation that acknowledges messages; ``part``: a transaction and a branch."""
        acked = tuple(map(AckedMessage.of, messages))
        return history.Acknowledge(self.subscription, self.name, acked, cumulative, *(part or ()))


def _part(txn: TransactionPart | None) -> tuple[str, int] | None:
    return None if txn is None else (str(txn.id), txn.branch)


def _received(messages: tuple[Message, ...]) -> history.Received:
    return history.Received(tuple(map(SeenMessage.of, messages)))
