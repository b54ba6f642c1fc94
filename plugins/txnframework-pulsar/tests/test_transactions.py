"""The commands of transactions, as bytes: Pulsar's client for Python has no transactions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest
from gateway_world import Wire, World

from txnframework.client import Client as NativeClient
from txnframework.errors import (
    EndTransactionTimeout,
    InvalidTransactionState,
    NotTransactionOwner,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
)
from txnframework.model.ids import TxnID
from txnframework.model.transactions import State
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.ids import txn_bits, txn_of
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.transactions import Transactions
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.frames import payload_of

IN = "persistent://public/default/in"
OUT = "persistent://public/default/out"
UNKNOWN = {"txnid_most_bits": 0, "txnid_least_bits": 99}


class Client:
    """A client with a producer of one topic, and a consumer of another."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        wire.greet()
        wire.request("tc_client_connect_request", "tc_client_connect_response", tc_id=0)
        self.sequence = 0
        self.producer(1, IN)
        self.producer(2, OUT)

    def producer(self, number: int, topic: str) -> None:
        self.wire.request("producer", "producer_success", topic=topic, producer_id=number)

    def subscribe(self, topic: str, number: int = 1, permits: int = 100) -> None:
        values = {"topic": topic, "subscription": "s", "consumer_id": number, "consumer_name": "c"}
        self.wire.request(
            "subscribe",
            "success",
            sub_type=pb.Subscribe.SHARED,
            initial_position=pb.Subscribe.EARLIEST,
            **values,
        )
        self.wire.send(pb.Command(flow=pb.Flow(consumer_id=number, message_permits=permits)))

    def begin(self, timeout_ms: int = 60_000) -> dict[str, int]:
        answer = self.wire.request("new_txn", "new_txn_response", timeout_ms=timeout_ms, tc_id=0)
        assert not answer.HasField("error"), answer
        return {"txnid_most_bits": answer.txnid_most_bits, "txnid_least_bits": answer.txnid_least_bits}

    def send(self, producer_id: int, content: bytes, txn: dict[str, int], answer: str = "send_receipt") -> object:
        command = pb.Send(producer_id=producer_id, sequence_id=self.sequence, **txn)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=self.sequence, publish_time=1)
        self.sequence += 1
        self.wire.send_message(command, metadata, content)
        return self.wire.answer(answer)

    def receive(self) -> tuple[bytes, pb.MessageId]:
        frame = self.wire.message()
        return payload_of(frame.rest)[1], frame.command.message.message_id

    def ack(self, message: pb.MessageId, txn: dict[str, int], consumer_id: int = 1) -> pb.AckResponse:
        command = pb.Ack(consumer_id=consumer_id, ack_type=pb.Ack.INDIVIDUAL, request_id=1_000, **txn)
        command.message_id.append(message)
        self.wire.send(pb.Command(ack=command))
        answer: pb.AckResponse = self.wire.answer("ack_response")
        return answer

    def end(self, txn: dict[str, int], action: pb.EndTxn.Action) -> pb.TxnResponse:
        answer: pb.TxnResponse = self.wire.request("end_txn", "end_txn_response", txn_action=action, **txn)
        return answer


@pytest.fixture
def client(world: World) -> Client:
    return Client(world.wire())


def test_a_transaction_takes_effect_as_a_whole(world: World, client: Client) -> None:
    """Messages and acknowledgments, sent and given back on another connection too."""
    client.send(1, b"a", {})
    client.subscribe(IN)
    content, message = client.receive()
    txn = client.begin()
    client.wire.request("add_partition_to_txn", "add_partition_to_txn_response", **txn)
    client.wire.request("add_subscription_to_txn", "add_subscription_to_txn_response", **txn)
    other = Client(world.wire())
    other.subscribe(OUT)
    client.send(2, b"from " + content, txn)
    assert not client.ack(message, txn).HasField("error")
    client.send(2, b"outside", {})
    assert not client.end(txn, pb.EndTxn.COMMIT).HasField("error")
    assert [other.receive()[0] for _ in range(2)] == [b"from a", b"outside"]
    again = client.end(txn, pb.EndTxn.COMMIT)
    assert not again.HasField("error"), "an end may be repeated"
    assert client.end(txn, pb.EndTxn.ABORT).error == pb.INVALID_TXN_STATUS


def test_an_abort_gives_messages_back(world: World, client: Client) -> None:
    client.send(1, b"a", {})
    client.subscribe(IN)
    _, message = client.receive()
    txn = client.begin()
    client.send(2, b"b", txn)
    client.ack(message, txn)
    assert not client.end(txn, pb.EndTxn.ABORT).HasField("error")
    assert client.receive() == (b"a", message)
    client.subscribe(OUT, 2)
    client.send(2, b"c", {})
    assert client.receive()[0] == b"c"


def test_two_transactions_cannot_acknowledge_one_message(world: World, client: Client) -> None:
    client.send(1, b"a", {})
    client.subscribe(IN)
    _, message = client.receive()
    first, second = client.begin(), client.begin()
    assert not client.ack(message, first).HasField("error")
    assert client.ack(message, second).error == pb.TRANSACTION_CONFLICT
    assert client.end(second, pb.EndTxn.COMMIT).error == pb.INVALID_TXN_STATUS, "one of its operations failed"
    assert not client.end(first, pb.EndTxn.COMMIT).HasField("error")


def test_a_transaction_that_is_not_known(client: Client) -> None:
    for request in ("add_partition_to_txn", "add_subscription_to_txn", "end_txn"):
        assert client.wire.request(request, f"{request}_response", **UNKNOWN).error == pb.TRANSACTION_NOT_FOUND
    refused = client.send(1, b"a", UNKNOWN, "send_error")
    assert refused.error == pb.NOT_ALLOWED_ERROR, "for other codes, clients send again"  # type: ignore[attr-defined]
    client.subscribe(IN)
    assert client.ack(pb.MessageId(ledger_id=1, entry_id=1), UNKNOWN).error == pb.TRANSACTION_NOT_FOUND


def test_a_message_of_a_transaction_that_has_ended(client: Client) -> None:
    """The client drops the message, instead of sending it again without end."""
    for action in (pb.EndTxn.COMMIT, pb.EndTxn.ABORT):
        txn = client.begin()
        client.end(txn, action)
        refused = client.send(2, b"a", txn, "send_error")
        assert refused.error == pb.NOT_ALLOWED_ERROR  # type: ignore[attr-defined]


def test_another_coordinator_is_not_known(client: Client) -> None:
    answer = client.wire.request("tc_client_connect_request", "tc_client_connect_response", tc_id=1)
    assert answer.error == pb.TRANSACTION_COORDINATOR_NOT_FOUND


def test_a_timeout_is_in_milliseconds(world: World, client: Client) -> None:
    """The protocol calls the field seconds, and clients write milliseconds."""
    txn = client.begin(timeout_ms=1)
    txn_id = txn_of(**{"most": txn["txnid_most_bits"], "least": txn["txnid_least_bits"]})
    assert txn_id is not None

    async def ended() -> State:
        while (state := await world.client.outcome(txn_id)) is State.OPEN:
            await world.client.maintain()
        return state

    assert world.run(ended()) is State.ABORTED
    assert client.end(txn, pb.EndTxn.COMMIT).error == pb.INVALID_TXN_STATUS
    answer = client.wire.request("new_txn", "new_txn_response", timeout_ms=10**12, tc_id=0)
    assert answer.error == pb.NOT_ALLOWED_ERROR


def test_transactions_end_with_their_gateway(world: World, client: Client) -> None:
    """Maintenance aborts what was open, and another gateway reports what was decided."""
    committed, left = client.begin(), client.begin()
    client.send(2, b"a", committed)
    client.send(2, b"b", left)
    client.end(committed, pb.EndTxn.COMMIT)
    world.restart()
    later = Client(world.wire())
    assert not later.end(committed, pb.EndTxn.COMMIT).HasField("error")
    world.run(world.client.maintain())
    assert later.end(left, pb.EndTxn.COMMIT).error == pb.INVALID_TXN_STATUS
    assert not later.end(left, pb.EndTxn.ABORT).HasField("error")
    later.subscribe(OUT)
    later.send(2, b"c", {})
    assert [later.receive()[0] for _ in range(2)] == [b"a", b"c"]


@pytest.mark.parametrize("action", [pb.EndTxn.COMMIT, pb.EndTxn.ABORT])
def test_a_transaction_of_another_program_is_left_alone(world: World, client: Client, action: pb.EndTxn.Action) -> None:
    """A client that guesses the id of another program's transaction cannot end it through a gateway."""
    other = world.client.transaction(domain="persistent" if world.domain == "persistent" else "segment")
    world.run(other.begin())
    most, least = txn_bits(other.id)
    refused = client.end({"txnid_most_bits": most, "txnid_least_bits": least}, action)
    assert refused.error == pb.TRANSACTION_COORDINATOR_NOT_FOUND
    assert world.run(world.client.outcome(other.id)) is State.OPEN
    world.run(other.commit())


def test_other_programs_cannot_end_a_transaction(world: World, client: Client) -> None:
    txn = client.begin()
    txn_id = txn_of(**{"most": txn["txnid_most_bits"], "least": txn["txnid_least_bits"]})
    assert txn_id is not None
    with pytest.raises(NotTransactionOwner):
        world.run(world.client.abort(txn_id))
    assert not client.end(txn, pb.EndTxn.COMMIT).HasField("error")


class Scripted:
    """A client of the framework, and its only transaction, whose ends fail as the test says."""

    def __init__(self, failure: TxnFrameworkError, state: State) -> None:
        self.id = TxnID(0, 1)
        self.state = State.OPEN
        self._failure = failure
        self._later = state
        self.host: Any = self
        self.config = self.transactions = self
        self.timeout_ms_max = 60_000

    def transaction(self, **_: object) -> Scripted:
        return self

    async def begin(self) -> None:
        return

    async def commit(self) -> None:
        self.state = self._later
        raise self._failure

    abort = commit


@pytest.mark.parametrize(
    ("failure", "state", "action", "code"),
    [
        (OutcomeUnknown("x"), State.OPEN, pb.EndTxn.COMMIT, pb.TRANSACTION_COORDINATOR_NOT_FOUND),
        (Unavailable("x"), State.OPEN, pb.EndTxn.ABORT, pb.TRANSACTION_COORDINATOR_NOT_FOUND),
        (EndTransactionTimeout(TxnID(0, 1), 5), State.COMMITTED, pb.EndTxn.COMMIT, None),
        (EndTransactionTimeout(TxnID(0, 1), 5), State.ABORTED, pb.EndTxn.ABORT, None),
        (InvalidTransactionState(TxnID(0, 1), State.COMMITTED, "x"), State.COMMITTED, pb.EndTxn.COMMIT, None),
        (
            InvalidTransactionState(TxnID(0, 1), State.ABORTED, "x"),
            State.ABORTED,
            pb.EndTxn.COMMIT,
            InvalidTransactionState,
        ),
    ],
)
def test_an_end_whose_outcome_is_not_told(
    failure: TxnFrameworkError, state: State, action: pb.EndTxn.Action, code: object
) -> None:
    """Clients repeat an end for one code only; a decided end succeeds."""

    async def ended() -> object:
        transactions = Transactions(
            cast(NativeClient, Scripted(failure, state)), cast(Topics, None), "topic", transactions_max=1
        )
        begun = (await transactions.begin(pb.NewTxn(request_id=1, timeout_ms=1_000), "")).new_txn_response
        with contextlib.closing(transactions):
            try:
                await transactions.end(
                    pb.EndTxn(
                        request_id=2,
                        txnid_most_bits=begun.txnid_most_bits,
                        txnid_least_bits=begun.txnid_least_bits,
                        txn_action=action,
                    ),
                    "",
                )
            except Refused as refused:
                return refused.code
            except TxnFrameworkError as error:
                return type(error)
        return None

    assert asyncio.run(ended()) == code
