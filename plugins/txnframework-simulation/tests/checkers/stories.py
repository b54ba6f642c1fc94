"""Histories by hand: a line for each thing that a client does."""

from __future__ import annotations

from itertools import count

from txnframework_simulation.checkers import check
from txnframework_simulation.history import (
    Abort,
    AckedMessage,
    AckFound,
    Acknowledge,
    AskAck,
    AskOutcome,
    Begin,
    Begun,
    Commit,
    Compact,
    Consume,
    CreateTopic,
    DeleteTopic,
    DrainCompacted,
    DrainConsumer,
    Drained,
    DrainOutcome,
    DrainSubscription,
    DrainTopic,
    History,
    MessagePosition,
    Operation,
    Outcome,
    PendingCall,
    Read,
    ReadSnapshot,
    Receive,
    Received,
    Recorder,
    Redeliver,
    Reply,
    Seek,
    SeenMessage,
    Send,
    Sent,
    Subscribe,
    Unsubscribe,
)

TOPIC = "topic://public/default/orders"
OTHER = "topic://public/default/bills"
LETTERS = f"{TOPIC}-s-DLQ"
ROOT = "0000-ffff-0"
LOW, HIGH = "0000-7fff-1", "8000-ffff-2"
T, U, V = (f"{number:032x}" for number in (1, 2, 3))


def place(entry: int, segment: str = ROOT, topic: str = TOPIC) -> MessagePosition:
    return MessagePosition(f"{topic.replace('topic', 'segment', 1)}/{segment}", 0, entry, 0)


class Story:
    """Builds a history; every call succeeds at once, unless ``answer`` says otherwise.

    ``fail`` and ``unknown`` are such answers; a call without a reply is begun by ``invoke``.
    """

    def __init__(self) -> None:
        self.history = History()
        self.recorder = Recorder(count(1).__next__, self.history.events.append)
        self.stands: dict[str, SeenMessage] = {}
        self.letters: list[SeenMessage] = []

    def broken(self) -> set[str]:
        """The names of the rules that are broken; each violation says something and shows events."""
        found = check(self.history)
        assert all(one.sentence and one.events for one in found)
        return {one.invariant for one in found}

    def invoke(self, operation: Operation, client: str = "c") -> PendingCall:
        return self.recorder.invoke(client, operation)

    def begin_send(self, value: str, txn: str) -> Story:
        self.invoke(Send(TOPIC, value, txn=txn), "other")
        return self

    def do(self, operation: Operation, reply: Reply | None = None, answer: str = "ok", client: str = "c") -> Story:
        asked = self.invoke(operation, client)
        if answer == "ok":
            asked.ok(reply)
        elif answer == "unknown":
            asked.unknown("the answer was lost")
        else:
            asked.fail("it was refused", reply if isinstance(reply, Outcome) else None)
        return self

    # -- transactions ---------------------------------------------------------------------------------

    def begin(self, *txns: str) -> Story:
        for txn in txns:
            self.do(Begin(), Begun(txn))
        return self

    def commit(self, txn: str, answer: str = "ok", branches: tuple[int, ...] = (), told: str | None = None) -> Story:
        return self.do(Commit(txn, branches), Outcome(told) if told else None, answer)

    def abort(self, txn: str, answer: str = "ok") -> Story:
        return self.do(Abort(txn), None, answer)

    def outcome(self, txn: str, state: str, finally_: bool = False) -> Story:
        return self.do(DrainOutcome(txn) if finally_ else AskOutcome(txn), Outcome(state))

    # -- messages -------------------------------------------------------------------------------------

    def send(
        self,
        value: str,
        entry: int | None = None,
        txn: str | None = None,
        *,
        segment: str = ROOT,
        topic: str = TOPIC,
        key: str | None = None,
        branch: int = 0,
        answer: str = "ok",
        sequence: int | None = None,
    ) -> Story:
        """Send; later calls name the message by its value. Without ``entry``, its position is unknown."""
        at = place(len(self.stands) if entry is None else entry, segment, topic)
        self.stands[value] = SeenMessage(at, value, key, txn)
        return self.do(Send(topic, value, key, txn, branch, "p", sequence), Sent(at), answer)

    def seen(self, value: str, incarnation: int = 0) -> SeenMessage:
        one = self.stands[value]
        return SeenMessage(one.place, one.value, one.key, one.txn, incarnation)

    def show(self, value: str, entry: int, txn: str | None = None, *, segment: str = ROOT) -> Story:
        """Let a message stand somewhere without anybody having sent it there."""
        self.stands[value] = SeenMessage(place(entry, segment), value, None, txn)
        return self

    def read(
        self, *values: str, reader: str = "r", start: str = "earliest", topic: str = TOPIC, whole: bool = False
    ) -> Story:
        return self.do(Read(topic, reader, start, whole=whole), Received(tuple(self.seen(one) for one in values)))

    def snapshot(self, *values: str) -> Story:
        return self.do(ReadSnapshot((TOPIC, OTHER)), Received(tuple(self.seen(one) for one in values)))

    def drain(self, *values: str, topic: str = TOPIC, trimmed: tuple[MessagePosition, ...] = ()) -> Story:
        return self.do(DrainTopic(topic), Drained(tuple(self.seen(one) for one in values), trimmed))

    # -- subscriptions --------------------------------------------------------------------------------

    def subscribe(self, start: str = "earliest") -> Story:
        return self.do(Subscribe(TOPIC, "s", start))

    def unsubscribe(self) -> Story:
        return self.do(Unsubscribe(TOPIC, "s"))

    def consume(
        self,
        consumer: str = "k",
        type: str = "exclusive",
        start: str = "earliest",
        *,
        topic: str = TOPIC,
        letters: str | None = None,
        most: int = 0,
    ) -> Story:
        return self.do(Consume((topic,), "s", consumer, type, start, letters, most))

    def receive(self, *values: str, consumer: str = "k", incarnation: int = 1, txn: str | None = None) -> Story:
        messages = tuple(self.seen(one, incarnation) for one in values)
        return self.do(Receive("s", consumer, txn), Received(messages))

    def receive_again(self, consumer: str = "k") -> Story:
        """Let a consumer ask for everything again that it has not acknowledged."""
        return self.do(Redeliver("s", consumer))

    def wait_in_vain(self, *values: str, consumer: str = "k", answer: str = "ok") -> Story:
        """Let a consumer receive these, alone and until nothing comes any more."""
        messages = tuple(self.seen(one, 1) for one in values)
        return self.do(DrainConsumer("s", consumer), Drained(messages), answer)

    def delete(self, answer: str = "ok", topic: str = TOPIC) -> Story:
        return self.do(DeleteTopic(topic), None, answer)

    def create(self, topic: str = TOPIC) -> Story:
        return self.do(CreateTopic(topic))

    def compact(self, order: str = "position", answer: str = "ok") -> Story:
        return self.do(Compact(TOPIC, order), None, answer)

    def compacted(self, *values: str) -> Story:
        """Let the topic be read as it was compacted."""
        return self.do(DrainCompacted(TOPIC), Drained(tuple(self.seen(one) for one in values)))

    def letter(self, value: str, entry: int = 0, txn: str | None = None) -> Story:
        """Let a message of the topic be found among the dead letters too."""
        self.letters.append(SeenMessage(place(entry, topic=LETTERS), value, None, txn))
        return self.do(DrainTopic(LETTERS), Drained(tuple(self.letters)))

    def ack(
        self,
        *values: str,
        txn: str | None = None,
        consumer: str = "k",
        incarnation: int = 1,
        cumulative: bool = False,
        branch: int = 0,
        answer: str = "ok",
    ) -> Story:
        acked = tuple(AckedMessage(self.stands[one].place, incarnation) for one in values)
        return self.do(Acknowledge("s", consumer, acked, cumulative, txn, branch), None, answer)

    def ask_ack(self, value: str, state: str, txn: str | None = None) -> Story:
        return self.do(AskAck("s", self.stands[value].place), AckFound(state, txn))

    def seek(self, to: str = "earliest", value: str | None = None, answer: str = "ok") -> Story:
        at = None if value is None else self.stands[value].place
        return self.do(Seek(TOPIC, "s", "message" if value else to, at), None, answer)

    def left(self, *values: str, incarnation: int = 1) -> Story:
        """Let the drain of the subscription bring these."""
        messages = tuple(self.seen(one, incarnation) for one in values)
        return self.do(DrainSubscription(TOPIC, "s"), Drained(messages))
