"""The transactions that clients of this gateway began."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import uuid4

from txnframework.client import Client, Transaction
from txnframework.errors import (
    Closed,
    EndTransactionTimeout,
    InvalidInput,
    InvalidTransactionState,
    LeaseLost,
    OutcomeUnknown,
    TransactionNotFound,
    Unavailable,
)
from txnframework.model.names import PERSISTENT, SEGMENT
from txnframework.model.transactions import State
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.ids import txn_bits, txn_of
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.wire import messages_pb2 as pb

COORDINATOR = 0
"""The number of the one coordinator that clients see."""
FORGOTTEN_S = 60
"""How long a transaction that its client did not end is known after its timeout."""

Txn = pb.AddPartitionToTxn | pb.AddSubscriptionToTxn | pb.EndTxn | pb.Send | pb.Ack


@dataclass(frozen=True, slots=True)
class _Begun:
    txn: Transaction
    user: str


class Transactions:
    """
    Begins and ends transactions, and knows them by their ids.

    All sends and acknowledgments of a transaction pass through the gateway that began it, whatever connection they come
    on. A transaction ends with its gateway: another one does not know which of its operations were confirmed. Each
    gateway has a principal of its own, so that no other program can add to its transactions or end them; and it ends no
    transaction that it did not begin.
    """

    def __init__(self, client: Client, topics: Topics, domain: str, transactions_max: int) -> None:
        self._client = client
        self._topics = topics
        self._domain = PERSISTENT if domain == PERSISTENT else SEGMENT
        self._transactions_max = transactions_max
        self._principal = f"pulsar-gateway-{uuid4().hex}"
        self._open: dict[tuple[int, int], _Begun] = {}
        self._timers: dict[tuple[int, int], asyncio.TimerHandle] = {}

    async def connect(self, asked: pb.TcClientConnectRequest) -> pb.Command:
        """Answer that the coordinator is here."""
        _check_coordinator(asked.tc_id)
        return pb.Command(tc_client_connect_response=pb.TcClientConnectResponse(request_id=asked.request_id))

    async def begin(self, asked: pb.NewTxn, user: str) -> pb.Command:
        """Begin a transaction of a user."""
        _check_coordinator(asked.tc_id)
        if len(self._open) >= self._transactions_max:
            raise Refused(pb.TOO_MANY_REQUESTS, f"{self._transactions_max} transactions are open")
        longest = self._client.host.config.transactions.timeout_ms_max
        if asked.timeout_ms > longest:
            raise InvalidInput(f"a transaction lasts at most {longest} ms, not {asked.timeout_ms}")
        txn = self._client.transaction(
            timeout_ms=asked.timeout_ms or None, domain=self._domain, principal=self._principal
        )
        await txn.begin()
        most, least = txn_bits(txn.id)
        self._open[most, least] = _Begun(txn, user)
        forgotten_s = (asked.timeout_ms or longest) / 1_000 + FORGOTTEN_S
        timer = asyncio.get_running_loop().call_later(forgotten_s, self._forget, (most, least))
        self._timers[most, least] = timer
        answer = pb.TxnResponse(request_id=asked.request_id, txnid_most_bits=most, txnid_least_bits=least)
        return pb.Command(new_txn_response=answer)

    def named(self, command: pb.Send | pb.Ack, user: str) -> Transaction | None:
        """
        Return the transaction of a send or an acknowledgment; None: it is outside of transactions.

        :raises Refused: this gateway did not begin the transaction for this user, or it has ended.
        """
        if not (command.HasField("txnid_least_bits") or command.HasField("txnid_most_bits")):
            return None
        return self._known(command, user)

    async def add_partitions(self, asked: pb.AddPartitionToTxn, user: str) -> pb.Command:
        """Accept topics of a transaction: they take part in it with the first message."""
        self._known(asked, user)
        for one in asked.partitions:
            self._topics.named(one)
        return pb.Command(add_partition_to_txn_response=_answer(asked))

    async def add_subscriptions(self, asked: pb.AddSubscriptionToTxn, user: str) -> pb.Command:
        """Accept subscriptions of a transaction: they take part in it with the first acknowledgment."""
        self._known(asked, user)
        for one in asked.subscription:
            self._topics.named(one.topic)
        return pb.Command(add_subscription_to_txn_response=_answer(asked))

    async def end(self, asked: pb.EndTxn, user: str) -> pb.Command:
        """
        Commit or abort a transaction; an end that is repeated succeeds.

        :raises Refused: with the code for which clients repeat the end, if the outcome is not known yet.
        """
        try:
            await self._end(asked, user)
        except EndTransactionTimeout:
            pass  # it is decided, and maintenance makes it take effect everywhere
        except (OutcomeUnknown, Unavailable, LeaseLost, Closed) as error:
            # For the code of a service that is not ready, clients report a failed commit, which may have succeeded.
            raise Refused(pb.TRANSACTION_COORDINATOR_NOT_FOUND, str(error)) from error
        return pb.Command(end_txn_response=_answer(asked))

    async def _end(self, asked: pb.EndTxn, user: str) -> None:
        key = (asked.txnid_most_bits, asked.txnid_least_bits)
        wanted = State.COMMITTED if asked.txn_action == pb.EndTxn.COMMIT else State.ABORTED
        if key not in self._open:
            await self._require_ended(asked, wanted)
            return
        txn = self._known(asked, user)
        try:
            await (txn.commit() if wanted is State.COMMITTED else txn.abort())
        except InvalidTransactionState as error:
            if error.actual is not wanted:
                raise
        finally:
            if txn.state is not State.OPEN:
                self._forget(key)

    async def _require_ended(self, asked: pb.EndTxn, wanted: State) -> None:
        """Raise unless a transaction that is not known here has ended as the client wants."""
        txn_id = txn_of(asked.txnid_most_bits, asked.txnid_least_bits)
        if txn_id is None:
            raise _unknown(asked)
        state = await self._client.outcome(txn_id)
        if state is State.OPEN:
            # Its gateway may live. If it does not, maintenance aborts the transaction soon: clients ask again.
            raise Refused(
                pb.TRANSACTION_COORDINATOR_NOT_FOUND, f"transaction {txn_id} is open, and was not begun by this gateway"
            )
        if state is not wanted:
            raise Refused(pb.INVALID_TXN_STATUS, f"transaction {txn_id} is {state.value}")

    def _known(self, command: Txn, user: str) -> Transaction:
        begun = self._open.get((command.txnid_most_bits, command.txnid_least_bits))
        if begun is None or begun.user != user:
            raise _unknown(command)  # the answer does not show that another user has this transaction
        return begun.txn

    def _forget(self, key: tuple[int, int]) -> None:
        self._open.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Forget all transactions; those that are open are aborted when the client closes."""
        for key in tuple(self._open):
            self._forget(key)


def failed_answer(name: str, request: Txn | pb.NewTxn, code: pb.ErrorCode, reason: str) -> pb.Command:
    """Return the answer to a command of transactions that failed; ``name`` is the field of the answer."""
    answer = _answer(request)
    answer.error = code
    answer.message = reason
    command = pb.Command()
    getattr(command, name).CopyFrom(answer)
    return command


def _answer(request: Txn | pb.NewTxn) -> pb.TxnResponse:
    answer = pb.TxnResponse()
    if not isinstance(request, pb.Send):
        answer.request_id = request.request_id
    if not isinstance(request, pb.NewTxn):
        answer.txnid_most_bits = request.txnid_most_bits
        answer.txnid_least_bits = request.txnid_least_bits
    return answer


def _check_coordinator(number: int) -> None:
    if number != COORDINATOR:
        raise Refused(pb.TRANSACTION_COORDINATOR_NOT_FOUND, f"there is no transaction coordinator {number}")


def _unknown(command: Txn) -> TransactionNotFound | Refused:
    txn_id = txn_of(command.txnid_most_bits, command.txnid_least_bits)
    if txn_id is None:
        number = f"({command.txnid_most_bits},{command.txnid_least_bits})"
        return Refused(pb.TRANSACTION_NOT_FOUND, f"transaction {number} was not begun here")
    return TransactionNotFound(txn_id)
