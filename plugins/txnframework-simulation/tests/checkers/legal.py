"""Large legal histories: clients of a small world that keeps every rule, and answers late, or never."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from itertools import count

from stories import TOPIC

from txnframework_simulation.history import (
    Abort,
    AckedMessage,
    Acknowledge,
    AskOutcome,
    Begin,
    Begun,
    Commit,
    Consume,
    Done,
    Drained,
    DrainOutcome,
    DrainSubscription,
    DrainTopic,
    History,
    MessagePosition,
    Operation,
    Outcome,
    Read,
    Receive,
    Received,
    Recorder,
    Reply,
    Seek,
    SeenMessage,
    Send,
    Sent,
    Split,
)

KEYS = 16
PAGE = 50
Step = tuple[Operation, Callable[[], Reply]]
Client = Generator[Step, Reply | None, None]


class World:
    """A topic whose segments split, one subscription of several consumers, transactions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.segments = [(0, 0xFFFF, 0)]
        self.log: dict[tuple[int, int, int], list[SeenMessage]] = {self.segments[0]: []}
        self.state: dict[str, str] = {}
        self.incarnation = 1
        self.done: set[MessagePosition] = set()
        self.pending: dict[MessagePosition, str] = {}
        self.acks: dict[str, list[AckedMessage]] = {}
        self.delivered: set[MessagePosition] = set()
        self.numbers = count(1)
        self.consumers = 1

    def name(self, segment: tuple[int, int, int]) -> str:
        low, high, number = segment
        return f"{TOPIC.replace('topic', 'segment', 1)}/{low:04x}-{high:04x}-{number}"

    def append(self, value: str, key: str, txn: str | None) -> Sent:
        segment = next(one for one in self.segments if one[0] <= int(key) * 4096 <= one[1])
        log = self.log[segment]
        at = MessagePosition(self.name(segment), 0, len(log))
        log.append(SeenMessage(at, value, key, txn))
        return Sent(at)

    def split(self, segment: tuple[int, int, int]) -> Reply:
        low, high, _ = segment
        middle = low + (high - low) // 2
        children = [(low, middle, len(self.log)), (middle + 1, high, len(self.log) + 1)]
        self.segments = [one for one in self.segments if one != segment] + children
        self.log |= {child: [] for child in children}
        return Done()

    def readable(self) -> list[SeenMessage]:
        """All that may be read, parents before children."""
        found = []
        for _, log in sorted(self.log.items(), key=lambda one: one[0][2]):
            for seen in log:
                state = "COMMITTED" if seen.txn is None else self.state[seen.txn]
                if state == "OPEN":
                    break
                if state == "COMMITTED":
                    found.append(seen)
        return found

    def end(self, txn: str, state: str) -> Reply:
        if self.state[txn] == "OPEN":
            self.state[txn] = state
            for one in self.acks.pop(txn, ()):
                if one.incarnation == self.incarnation:
                    del self.pending[one.place]
                    if state == "COMMITTED":
                        self.done.add(one.place)
        return Outcome(self.state[txn])

    def ack(self, acked: AckedMessage, txn: str | None) -> Reply:
        if acked.incarnation == self.incarnation and acked.place not in self.done and acked.place not in self.pending:
            if txn is None:
                self.done.add(acked.place)
            else:
                self.pending[acked.place] = txn
                self.acks.setdefault(txn, []).append(acked)
            return Done()
        return Done() if txn is None else Outcome("CONFLICT")

    def seek(self) -> Reply:
        self.incarnation += 1
        self.done.clear()
        self.pending.clear()
        return Done()

    def left(self) -> list[SeenMessage]:
        return [
            SeenMessage(one.place, one.value, one.key, one.txn, self.incarnation)
            for one in self.readable()
            if one.place not in self.done and one.place not in self.pending
        ]

    def some(self) -> Reply:
        """Some messages of those that are left, from anywhere."""
        left = self.left()
        at = self.random.randrange(len(left)) if left else 0
        return Received(tuple(left[at : at + self.random.randint(1, 6)]))

    # -- clients --------------------------------------------------------------------------------------

    def producing(self) -> Client:
        """Transactions and lone messages."""
        while True:
            number = next(self.numbers)
            txn = None
            if number % 3:
                txn = f"{number:032x}"
                self.state[txn] = "OPEN"
                yield Begin(), lambda txn=txn: Begun(txn)
            for part in range(self.random.randint(1, 4)):
                value, key = f"v{number}.{part}", str(self.random.randrange(KEYS))
                send = Send(TOPIC, value, key, txn)
                yield send, lambda send=send: self.append(send.value, send.key or "0", send.txn)
            if txn is not None:
                state = self.random.choice(("COMMITTED", "COMMITTED", "ABORTED"))
                end = Commit(txn) if state == "COMMITTED" else Abort(txn)
                yield end, lambda txn=txn, state=state: self.end(txn, state)
                yield AskOutcome(txn), lambda txn=txn: Outcome(self.state[txn])

    def consuming(self) -> Client:
        """A consumer that joins anew now and then, with acknowledgments in and outside of transactions."""
        while True:
            consumer = f"k{next(self.numbers)}"
            yield Consume((TOPIC,), "s", consumer, "shared", "earliest"), Done
            for _ in range(30):
                told = yield Receive("s", consumer), self.some
                if not isinstance(told, Received):
                    continue
                number = next(self.numbers)
                txn = f"{number:032x}" if number % 2 else None
                if txn is not None:
                    self.state[txn] = "OPEN"
                    yield Begin(), lambda txn=txn: Begun(txn)
                poisoned = False
                for seen in told.messages:
                    acked = AckedMessage(seen.place, seen.incarnation)
                    ack = Acknowledge("s", consumer, (acked,), txn=txn)
                    answer = yield ack, lambda acked=acked, txn=txn: self.ack(acked, txn)
                    poisoned = poisoned or answer != Done()
                if txn is not None:
                    state = "ABORTED" if poisoned or self.random.random() < 0.3 else "COMMITTED"
                    end = Commit(txn) if state == "COMMITTED" else Abort(txn)
                    yield end, lambda txn=txn, state=state: self.end(txn, state)

    def reading(self) -> Client:
        """Readers of one topic from its beginning."""
        while True:
            reader = f"r{next(self.numbers)}"
            ahead = list(self.readable())
            while ahead:
                page, ahead = tuple(ahead[:PAGE]), ahead[PAGE:]
                yield Read(TOPIC, reader), lambda page=page: Received(page)
            for _ in range(200):
                yield AskOutcome("0" * 32), lambda: Outcome("OPEN")

    def operating(self, seeking: bool) -> Client:
        """An operator who sometimes splits segments and seeks."""
        for turn in range(6):
            for _ in range(400):
                yield AskOutcome("0" * 32), lambda: Outcome("OPEN")
            if turn % 3 == 2 and seeking:
                yield Seek(TOPIC, "s", "earliest"), self.seek
            else:
                segment = self.random.choice(self.segments)
                yield Split(TOPIC, segment[2]), lambda segment=segment: self.split(segment)


def history(seed: int, events: int, *, seeking: bool = True) -> History:
    """Return a legal history of about so many events, and then a drain."""
    world = World(seed)
    found = History(about={"seed": str(seed)})
    recorder = Recorder(count(1).__next__, found.events.append)
    running = [world.producing() for _ in range(6)]
    running += [world.consuming() for _ in range(3)] + [world.reading(), world.operating(seeking)]
    _run(world, recorder, found, running, events)
    for txn in world.state:
        world.end(txn, "ABORTED")
        recorder.invoke("drain", DrainOutcome(txn)).ok(Outcome(world.state[txn]))
    recorder.invoke("drain", DrainTopic(TOPIC)).ok(Drained(tuple(world.readable())))
    recorder.invoke("drain", DrainSubscription(TOPIC, "s")).ok(Drained(tuple(world.left())))
    return found


def _run(world: World, recorder: Recorder, found: History, running: list[Client], events: int) -> None:
    """Let clients go on by turns; between asking and being told others have theirs."""
    answers: dict[int, Callable[[], Reply | None]] = {}
    told: dict[int, Reply | None] = dict.fromkeys(range(len(running)))
    while len(found.events) < events and told:
        number = world.random.choice(tuple(told))
        if number in answers:
            told[number] = answers.pop(number)()
            continue
        try:
            operation, effect = running[number].send(told[number])
        except StopIteration:
            del told[number]
            continue
        answers[number] = _ask(world, recorder, f"client-{number}", operation, effect)


def _ask(
    world: World, recorder: Recorder, client: str, operation: Operation, effect: Callable[[], Reply]
) -> Callable[[], Reply | None]:
    """Ask now; take effect now or with the answer; the answer may be lost, the effect too then."""
    asked = recorder.invoke(client, operation)
    chance = world.random.random()
    lost = chance < 0.02 and isinstance(operation, Commit | Acknowledge) and operation.txn is not None
    early = effect() if chance > 0.5 and not lost else None

    def answer() -> Reply | None:
        if lost:
            if chance < 0.01:
                effect()
            asked.unknown("the answer was lost")
            return None
        reply = early or effect()
        if isinstance(operation, Commit | Abort):
            wanted = "COMMITTED" if isinstance(operation, Commit) else "ABORTED"
            assert isinstance(reply, Outcome)
            if reply.state == wanted:
                asked.ok()
            else:
                asked.fail("it had ended otherwise", reply)
        elif reply == Outcome("CONFLICT"):
            asked.fail("another transaction holds it")
        else:
            asked.ok(reply)
        return reply

    return answer
