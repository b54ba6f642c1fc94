"""Hostile arguments: every public call takes them, or refuses them in one clear sentence; it never hangs."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import txnframework
from txnframework import Client, DeadLetter, InvalidInput, MessageID, Position, ReceiveTimeout, TxnFrameworkError
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.serializers import PlainJson

PATIENCE_S = 120
"""What takes longer hangs."""
SENTENCE_CHARACTERS_MAX = 1_000
CONTROL = {"Cc", "Cs", "Zl", "Zp"}
TOPIC, SUBSCRIPTION = "hostile", "subscription"

Call = Callable[[Client, Any], Awaitable[object]]


async def _producer_named(client: Client, name: Any) -> None:
    async with await client.producer(TOPIC, name=name) as producer:
        await producer.send(b"v")
    async with client.transaction() as txn, await client.producer(TOPIC, name=name) as producer:
        await producer.send(b"v", txn=txn)


async def _send(client: Client, value: object = b"v", **given: Any) -> None:
    async with await client.producer(TOPIC, name="sender") as producer:
        await producer.send(value, **given)  # type: ignore[arg-type]
        await producer.send(b"after")  # where the id that was chosen was the last one, the next one is refused


def _named(name: Any) -> object:
    """Return headers with one of this name; where no mapping can hold it, the name itself."""
    try:
        return {name: b"v"}
    except TypeError:
        return name


async def _send_many(client: Client, values: Any) -> None:
    async with await client.producer(TOPIC) as producer:
        await producer.send_many(values)


async def _send_typed(client: Client, value: Any) -> None:
    async with await client.producer(TOPIC, serializer=PlainJson(schema="any")) as producer:
        await producer.send(value)


async def _consume(client: Client, topics: Any = TOPIC, subscription: Any = SUBSCRIPTION, **given: Any) -> None:
    async with await client.consumer(topics, subscription, type="shared", **given) as consumer:
        await consumer.receive_many(messages_max=1, timeout_ms=0)


async def _with_consumer(client: Client, method: str, *given: Any, **named: Any) -> None:
    async with await client.consumer(TOPIC, SUBSCRIPTION, type="shared") as consumer:
        await getattr(consumer, method)(*given, **named)


async def _nothing(*_: object) -> None:
    """Handle nothing: a run without room for a handler is refused."""


async def _read(client: Client, topic: Any = TOPIC, **given: Any) -> None:
    async with await client.reader(topic, **given) as reader:
        async for _ in reader:
            return


async def _begin(client: Client, **given: Any) -> None:
    async with client.transaction(**given) as txn, await client.producer(TOPIC) as producer:
        await producer.send(b"v", txn=txn)


async def _join(client: Client, **given: Any) -> None:
    async with client.transaction() as txn, await client.producer(TOPIC) as producer:
        await producer.send(b"v", txn=client.join(**{"txn_id": txn.id, **given}))


async def _abort(client: Client, **given: Any) -> None:
    async with client.transaction() as txn:
        await client.abort(txn.id, **given)


async def _dead_letters(client: Client, given: Any) -> None:
    letter = DeadLetter(1, given) if isinstance(given, str) else DeadLetter(given)
    await _consume(client, dead_letter=letter)


CALLS: dict[str, Call] = {
    "create_topic": lambda client, one: client.create_topic(one, exist_ok=True),
    "create_topic segments": lambda client, one: client.create_topic("new", segments=one, exist_ok=True),
    "create_topic persistent": lambda client, one: client.create_topic(
        f"persistent://a/b/{one}" if isinstance(one, str) else one, exist_ok=True
    ),
    "delete_topic": lambda client, one: client.delete_topic(one),
    "delete_namespace": lambda client, one: client.delete_namespace(one),
    "layout": lambda client, one: client.layout(one),
    "undecided": lambda client, one: client.undecided(one),
    "split": lambda client, one: client.split(TOPIC, one),
    "merge": lambda client, one: client.merge(TOPIC, 0, one),
    "compact": lambda client, one: client.compact(TOPIC, order=one),
    "subscribe": lambda client, one: client.subscribe(TOPIC, one),
    "subscribe start": lambda client, one: client.subscribe(TOPIC, SUBSCRIPTION, start=one),
    "unsubscribe": lambda client, one: client.unsubscribe(TOPIC, one),
    "seek": lambda client, one: client.seek(TOPIC, SUBSCRIPTION, one),
    "seek subscription": lambda client, one: client.seek(TOPIC, one, "earliest"),
    "lag": lambda client, one: client.lag(TOPIC, one),
    "peek": lambda client, one: client.peek(TOPIC, one),
    "peek messages": lambda client, one: client.peek(TOPIC, SUBSCRIPTION, one),
    "ack_status": lambda client, one: client.ack_status(SUBSCRIPTION, one),
    "producer": lambda client, one: client.producer(one),
    "producer name": _producer_named,
    "producer serializer": lambda client, one: client.producer(TOPIC, serializer=one),
    "consumer serializer": lambda client, one: _consume(client, serializer=one),
    "reader serializer": lambda client, one: _read(client, serializer=one),
    "send value": lambda client, one: _send(client, one),
    "send key": lambda client, one: _send(client, key=one),
    "send headers": lambda client, one: _send(client, headers=one),
    "send header name": lambda client, one: _send(client, headers=_named(one)),
    "send header value": lambda client, one: _send(client, headers={"h": one}),
    "send sequence": lambda client, one: _send(client, sequence_id=one),
    "send txn": lambda client, one: _send(client, txn=one),
    "send typed value": _send_typed,
    "send_many": _send_many,
    "consumer topics": lambda client, one: _consume(client, one),
    "consumer subscription": lambda client, one: _consume(client, TOPIC, one),
    "consumer name": lambda client, one: _consume(client, name=one),
    "consumer priority": lambda client, one: _consume(client, priority=one),
    "consumer dead letters": _dead_letters,
    "consumer start": lambda client, one: _consume(client, start=one),
    "receive_many messages": lambda client, one: _with_consumer(client, "receive_many", messages_max=one, timeout_ms=0),
    "ack": lambda client, one: _with_consumer(client, "ack", one),
    "nack": lambda client, one: _with_consumer(client, "nack", one),
    "nack delay": lambda client, one: _with_consumer(client, "nack", delay_ms=one),
    "send at": lambda client, one: _send(client, deliver_at_ms=one),
    "send after": lambda client, one: _send(client, deliver_after_ms=one),
    "run": lambda client, one: _with_consumer(client, "run", one, concurrency=0),
    "run_batches messages": lambda client, one: _with_consumer(
        client, "run_batches", _nothing, messages_max=one, concurrency=0
    ),
    "run signals": lambda client, one: _with_consumer(client, "run", _nothing, stop_on_signals=one, concurrency=0),
    "consumer seek": lambda client, one: _with_consumer(client, "seek", one),
    "reader": lambda client, one: _read(client, one),
    "reader start": lambda client, one: _read(client, start=one),
    "reader isolation": lambda client, one: _read(client, isolation=one),
    "transaction timeout": lambda client, one: _begin(client, timeout_ms=one),
    "transaction principal": lambda client, one: _begin(client, principal=one),
    "transaction domain": lambda client, one: _begin(client, domain=one),
    "transaction namespace": lambda client, one: _begin(client, namespace=one),
    "join": lambda client, one: _join(client, txn_id=one),
    "join principal": lambda client, one: _join(client, principal=one),
    "commit": lambda client, one: client.commit(one),
    "abort principal": lambda client, one: _abort(client, principal=one),
    "outcome": lambda client, one: client.outcome(one),
    "ping": lambda client, one: client.ping(timeout_ms=one),
    "settle": lambda client, one: client.settle(one),
    "find_hanging": lambda client, one: client.find_hanging(one),
    "list_topics": lambda client, one: client.list_topics(one),
    "list_topics domain": lambda client, one: client.list_topics(domain=one),
    "list_topics after": lambda client, one: client.list_topics(after=one),
    "list_topics topics": lambda client, one: client.list_topics(topics_max=one),
    "describe_topic": lambda client, one: client.describe_topic(one),
    "describe_subscription": lambda client, one: client.describe_subscription("hostile", one),
    "describe_transaction": lambda client, one: client.describe_transaction(one),
    "leases": lambda client, one: client.leases(one),
    "leases after": lambda client, one: client.leases(after=one),
    "leases number": lambda client, one: client.leases(leases_max=one),
    "find_hanging transactions": lambda client, one: client.find_hanging(transactions_max=one),
}
"""Every call that takes something from its caller, with one of its arguments left open."""

TIMED = {"ping"}
"""The calls of which the argument is the time to wait, so that a timeout is an answer too."""

NUMBERS = st.one_of(
    st.sampled_from((-1, 0, 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**4_999, -(10**4_999))),
    st.integers(),
)
TEXTS = st.one_of(
    st.sampled_from(
        ("\ud800", "a\udfff", "\x00", "\x1b[31m", "\x9b31m", "\u202egpj", " a", "a ", "..", "%", "%2e", "a/b")
    )
    | st.sampled_from(("x" * 256, "é" * 127, "é" * 128, "y" * 5_000, "y" * 1_500_000, "9" * 5_000, "segment://a/b/c")),
    st.text(st.characters(), max_size=12),
)
SEGMENT = "segment://public/default/hostile/0000-ffff-0"
MESSAGE_IDS = st.builds(
    MessageID,
    st.one_of(st.just(SEGMENT), TEXTS),
    st.builds(Position, NUMBERS, NUMBERS, NUMBERS),
)
HOSTILE = st.one_of(
    TEXTS,
    NUMBERS,
    MESSAGE_IDS,
    st.floats(),
    st.binary(max_size=8),
    st.sampled_from((None, True, False, object(), (), [], {}, [b"a"], ["a"], [b""], {"h": b""}, {1: 2}, {"h": None})),
)


@dataclass
class Opened:
    """A client of a store of its own, and the loop that it lives in."""

    client: Client
    runner: asyncio.Runner

    def answer(self, call: Call, argument: object) -> TxnFrameworkError | None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await call(self.client, argument)

        try:
            self.runner.run(bounded())
        except TxnFrameworkError as error:
            return error
        return None


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    url = "memory://hostile-arguments" if request.param == "memory" else f"sqlite:///{folder}/txn.db"

    async def enter() -> Client:
        client = await opening.__aenter__()
        await client.create_topic(TOPIC, exist_ok=True)
        await client.subscribe(TOPIC, SUBSCRIPTION)
        return client

    with asyncio.Runner() as runner:
        # What is tried again costs time and changes no answer here.
        opening = txnframework.open({"metadata": {"url": url}, "client": {"retries_max": 0}})
        client = runner.run(enter())
        yield Opened(client, runner)
        runner.run(opening.__aexit__(None, None, None))


@pytest.mark.parametrize("name", CALLS)
@given(argument=HOSTILE)
@example(argument=10**4_999)
@example(argument="a\ud800")
@example(argument=2**63 - 1)
@example(argument="y" * 1_500_000)
@example(argument=b"x")
@example(argument=None)
@example(argument=1.5)
def test_argument_is_taken_or_refused_in_one_sentence(opened: Opened, name: str, argument: object) -> None:
    """Whatever it is: never an error of a driver, of Python's own, or one that passes for an outage."""
    error = opened.answer(CALLS[name], argument)
    if error is None:
        return
    assert not isinstance(error, OutcomeUnknown), f"{name} may have stored it: {error}"
    timed_out = name in TIMED or isinstance(error, ReceiveTimeout)
    assert timed_out or not isinstance(error, Unavailable), f"{name} is tried again: {error}"
    sentence = str(error)
    sentence.encode()
    assert 0 < len(sentence) <= SENTENCE_CHARACTERS_MAX, f"{name} answers with {len(sentence)} characters"
    assert CONTROL.isdisjoint(map(unicodedata.category, sentence)), f"{name} answers with {sentence!r}"


BAD_NAMES = ("x" * 256, "é" * 128, " a", "a\t", "a\n", "\x00", "\x1b", "a\ud800", "\u202ea", "y" * 1_500_000)
NAMED = ("create_topic", "subscribe", "producer name", "consumer name", "transaction principal")
REFUSED: list[tuple[str, object]] = [
    *((name, argument) for name in NAMED for argument in BAD_NAMES),
    ("send sequence", 2**63 - 1),
    ("send sequence", 2**63),
    ("send header name", "\ud800"),
    ("seek", 10**5_000),
    ("seek", 2**62),
    ("consumer seek", 10**5_000),
    ("transaction timeout", 10**5_000),
    ("reader start", 10**5_000),
    ("seek", MessageID(SEGMENT, Position(0, -1))),
    ("consumer seek", MessageID(SEGMENT, Position(0, -1))),
    ("seek", MessageID(SEGMENT, Position(10**5_000, 0))),
    ("ack", MessageID(SEGMENT, Position(0, -1))),
]


@pytest.mark.parametrize("case", range(len(REFUSED)), ids=lambda case: f"{REFUSED[case][0]}-{case}")
def test_refused_as_invalid_input(opened: Opened, case: int) -> None:
    """What no store should see is refused as something that was typed wrong, before it is sent to one."""
    name, argument = REFUSED[case]
    assert isinstance(opened.answer(CALLS[name], argument), InvalidInput)
