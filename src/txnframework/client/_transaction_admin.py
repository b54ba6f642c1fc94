"""Client operations on transactions: create, join, and end by id."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from txnframework.broker import HangingTransaction
from txnframework.client._arguments import whole_number
from txnframework.client._base import ClientOperations
from txnframework.client._co_commit import CoCommitTransaction
from txnframework.client._messages import MessageID
from txnframework.client._own_rows import JoinedRows, usual_block
from txnframework.client._planned import PlannedAck, PlannedSend, take_planned
from txnframework.client._transact import require_place, transact_planned
from txnframework.client._transaction import BlockTransaction, JoinedTransaction, Transaction
from txnframework.errors import InvalidInput, excerpt
from txnframework.model.ids import BRANCH_BITS, Branch, TxnID
from txnframework.model.names import TRANSACTION_DOMAINS, check_namespace, check_new_name
from txnframework.model.positions import TIME_MS_MAX
from txnframework.model.transactions import Action, Begin, End, State


class TransactionOperations(ClientOperations):
    """The transaction operations of ``Client``."""

    def transaction(
        self,
        *,
        timeout_ms: int | None = None,
        principal: str = "",
        outlives_client: bool = False,
        domain: str = "segment",
        namespace: str = "",
        commit_with: object | None = None,
    ) -> Transaction:
        """
        Create a transaction; it begins on entering ``async with``.

        :param timeout_ms: the transaction is aborted after this time unless it has ended before; default:
            ``transactions.timeout_ms``.
        :param principal: the only principal that may add to the transaction and end it. Default: every caller that
            knows its id may do so.
        :param outlives_client: leave the transaction open until its timeout when this client closes or its process
            dies. ``Client.commit`` or ``Client.abort`` can then end it by its id. Otherwise it is aborted as soon as
            the end of the client is noticed.
        :param domain: the kind of topics: ``segment`` for ``topic://`` and their segments, or ``persistent``. If both
            domains are configured with one family, the two values are equivalent. Otherwise a transaction of one domain
            raises TransactionDomainMismatch on a topic of the other domain.
        :param namespace: the namespace of the topics, such as ``public/default``. It is needed only if this namespace
            is configured with another family than the rest of the domain.
        :param commit_with: a connection or session to the database of the metadata store. Rows that are written through
            it in the ``async with`` block, messages and acknowledgments take effect together or not at all. On entry
            its open transaction is joined, or one begins. It is committed or rolled back with this transaction. Neither
            commit nor roll it back yourself, and leave no savepoint open. An error of the driver at the COMMIT is
            raised unchanged, and this transaction is then aborted. No other call can commit this transaction.
        :raises InvalidInput: an argument is invalid.
        """
        timeout = self._timeout_ms(timeout_ms)
        if domain not in TRANSACTION_DOMAINS:
            raise InvalidInput(
                f"{excerpt(domain)} is no domain of transactions; there are {' and '.join(TRANSACTION_DOMAINS)}"
            )
        if namespace != "":
            check_namespace(namespace)
        check_principal(principal)
        place = (domain, namespace)
        request = Begin(timeout, principal, co_commit=commit_with is not None)
        if commit_with is None:
            return Transaction(self.host, self._retry, request, place, outlives_client)
        return CoCommitTransaction(self.host, self._retry, request, place, outlives_client, commit_with)

    async def transact(
        self,
        *operations: PlannedSend | PlannedAck,
        timeout_ms: int | None = None,
        principal: str = "",
        commit_with: object | None = None,
    ) -> tuple[MessageID, ...]:
        """
        Begin a transaction, perform these operations in it, and commit; return the ids of the messages, in order.

        Either all messages become visible and all acknowledgments take effect, or nothing does. With metadata and
        messages in one database, it usually takes one step of the store, instead of one step for each operation.

        Calls that run at the same time, and sends that have not returned, may be stored in any order. Await each call
        before the next one with the same key.

        If the caller is cancelled, everything is carried out or nothing.

        :param operations: what ``Producer.outgoing`` and ``Consumer.acknowledging`` returned. Each object is used once.
        :param timeout_ms: the transaction is aborted if it takes longer; default: ``transactions.timeout_ms``.
        :param principal: as for ``transaction``.
        :param commit_with: a connection or session to the database of the metadata store. The rows that were written in
            its open transaction take effect together with the operations; it is committed, or rolled back after an
            error. An error of the arguments is raised before the connection is used, and changes nothing. Nothing holds
            locks of the stores before the COMMIT is sent, so this is faster than ``transaction(commit_with=...)``. An
            error of the driver at the COMMIT is raised unchanged. The connection needs the isolation level READ
            COMMITTED.
        :raises InvalidInput: there are no operations, an object is used already or belongs to other stores, or one
            transaction cannot cover all topics.
        :raises Closed: a producer or consumer was closed.
        :raises TransactionConflict: another transaction acknowledged one of the messages, or it is acknowledged
            already; nothing took effect. With ``commit_with`` also if a topic or subscription has changed meanwhile, or
            the reply to the COMMIT was lost and it was not carried out: do the work again, with its rows.
        :raises InvalidTransactionState: the transaction was aborted, for instance by its timeout; nothing took effect.
        :raises OutcomeUnknown: everything took effect or nothing. To repeat the call safely, choose the sequence ids.

        Other errors are those of ``Producer.send`` and ``Consumer.ack``; nothing took effect.
        """
        planned = take_planned(self.host, operations)
        timeout = self._timeout_ms(timeout_ms)
        check_principal(principal)
        request = Begin(timeout, principal)
        if commit_with is not None:
            rows = await JoinedRows.join(self.host, await require_place(self.host, planned), commit_with)
            return await rows.transact(planned, request, partial(usual_block, self.host, self._retry, request))
        return await transact_planned(
            self.host, planned, request, lambda place: BlockTransaction(self.host, self._retry, request, place, False)
        )

    def join(self, txn_id: TxnID | str, *, principal: str = "") -> JoinedTransaction:
        """
        Take part in a transaction of another process, under a random branch; the other process ends it.

        :param txn_id: the id, or its text form (``str``) as it is passed between processes.
        :param principal: the principal with which the transaction was begun; with any other one, sends and
            acknowledgments are refused.
        """
        joined = parse_txn_id(txn_id)
        check_principal(principal)
        number = self.host.environment.random_bits(BRANCH_BITS) or 1
        return JoinedTransaction(Branch(joined, number), principal, self.host.metadata.identity)

    async def outcome(self, txn_id: TxnID | str) -> State:
        """
        Return OPEN, COMMITTED or ABORTED, after waiting for any cancelled commit or abort of this client.

        :raises TransactionNotFound: the transaction never began, or its outcome is no longer kept.
        :raises TransactionDomainMismatch: no plugin of the transaction's family is installed. Every method that takes
            an id raises this.
        """
        asked = parse_txn_id(txn_id)
        await self.host.steps.abandoned_ended((asked,))
        coordinator = await self.host.coordinator_for(asked)
        return (await self._retry.run(lambda: coordinator.describe(asked))).state

    async def commit(
        self, txn_id: TxnID | str, branches: Iterable[int] = (), *, principal: str = "", operator: bool = False
    ) -> None:
        """
        Commit a transaction by its id, with branch 0 and ``branches``: after a restart, or for an operator.

        Commit only if all operations of these branches are known to be confirmed. An operation that is under way
        nevertheless counts if it was stored before the commit; later ones are refused. In the metadata family, the
        commit therefore closes the open ledgers of these branches. Errors are those of ``Transaction.commit``. If the
        caller is cancelled, the commit is still carried out.

        :param branches: the numbers of the other branches that count.
        :param principal: the principal with which the transaction was begun.
        :param operator: end the transaction regardless of its owner, for a tool that has authenticated its user.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing was changed.
        :raises TransactionConflict: only its own process can commit it (``commit_with``), or its first message to an
            empty ledger may be under way. The transaction is open; abort it, or let its owner end it.
        """
        check_principal(principal)
        counting = frozenset(whole_number(one, "a branch", 0) for one in (0, *branches))
        end = End(parse_txn_id(txn_id), Action.COMMIT, principal, counting, operator, unfinished=True)
        await self._end(end)

    async def abort(self, txn_id: TxnID | str, *, principal: str = "", operator: bool = False) -> None:
        """
        Abort a transaction by its id.

        Errors are those of ``Transaction.abort``; ``principal`` and ``operator`` are as for ``commit``.
        """
        check_principal(principal)
        await self._end(End(parse_txn_id(txn_id), Action.ABORT, principal, operator=operator))

    async def settle(self, txn_id: TxnID | str) -> int:
        """
        Settle an ended transaction now instead of leaving it to the sweeps.

        Return the number of operations that could not be settled now; the sweeps retry them.

        :raises InvalidTransactionState: the transaction is open.
        :raises TransactionNotFound: the transaction never began, or its outcome is no longer kept.
        """
        ended = parse_txn_id(txn_id)
        await self.host.steps.abandoned_ended((ended,))
        coordinator = await self.host.coordinator_for(ended)
        await self._retry.run(lambda: coordinator.describe(ended))
        return (await self._retry.run(lambda: coordinator.settle(ended))).left

    async def find_hanging(
        self, age_ms_min: int = 60_000, *, after: HangingTransaction | None = None, transactions_max: int = 100
    ) -> tuple[HangingTransaction, ...]:
        """
        Return transactions that need attention: long open, or ended long ago and not settled. Nothing is changed.

        An open transaction is reported with whether the process that began it is alive. An ended one is reported with
        the participants that are not settled: no process sweeps, or a participant cannot be settled. For each family
        the open transactions come first, by deadline.

        :param age_ms_min: report transactions that have been open, or ended, for at least this many milliseconds.
        :param after: the last transaction of the previous page.
        :param transactions_max: the page size; a shorter page is the last one.
        :raises TransactionNotFound: ``after`` has been forgotten in the meantime; start from the first page.
        """
        whole_number(age_ms_min, "age_ms_min", 0, TIME_MS_MAX)
        whole_number(transactions_max, "transactions_max", 1)
        return await self._retry.run(lambda: self.host.hanging_transactions.find(age_ms_min, after, transactions_max))

    def _timeout_ms(self, given: int | None) -> int:
        """Return the timeout of a transaction, or raise InvalidInput."""
        bounds = self.host.config.transactions
        return whole_number(bounds.timeout_ms if given is None else given, "timeout_ms", 1, bounds.timeout_ms_max)

    async def _end(self, end: End) -> None:
        coordinator = await self.host.coordinator_for(end.txn_id)

        async def decide() -> None:
            await self._retry.run(lambda: coordinator.end(end))
            self._host.own_transactions.settle_soon(end.txn_id)

        await self.host.steps.finish(decide, (end.txn_id,))


def parse_txn_id(given: TxnID | str) -> TxnID:
    """
    Return the transaction id, given as such or in its text form (``str``).

    :raises InvalidInput: the text is not a transaction id.
    """
    if isinstance(given, TxnID):
        return given
    if not isinstance(given, str):
        raise InvalidInput(f"a transaction id is expected, or its text, not {excerpt(given)}")
    try:
        return TxnID.parse(given)
    except ValueError as error:
        raise InvalidInput(f"{excerpt(given)} is not a transaction id (32 lower-case hex digits)") from error


def check_principal(given: object) -> None:
    """Raise InvalidInput if the value cannot be a principal; an empty one means no principal."""
    if given != "":
        check_new_name(given, "principal")
