"""Transactions: making and joining them, and ending them by their ids."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.broker import HangingTransaction
from txnframework.client._arguments import whole_number
from txnframework.client._calls import Calls
from txnframework.client._transaction import JoinedTransaction, Transaction
from txnframework.errors import InvalidInput, excerpt
from txnframework.model.ids import BRANCH_BITS, Branch, TxnID
from txnframework.model.names import TRANSACTION_DOMAINS, check_namespace, check_new_name
from txnframework.model.positions import TIME_MS_MAX
from txnframework.model.transactions import Action, Begin, End, State


class TransactionCalls(Calls):
    """What a client can be asked of transactions."""

    def transaction(
        self,
        *,
        timeout_ms: int | None = None,
        principal: str = "",
        outlives_client: bool = False,
        domain: str = "segment",
        namespace: str = "",
    ) -> Transaction:
        """
        Make a transaction; it begins on entering ``async with``.

        :param domain: for which topics: ``segment`` for ``topic://`` and their segments, or ``persistent``. Where the
            two domains are configured with one family it makes no difference; where they are not, a transaction of the
            one raises TransactionDomainMismatch on a topic of the other.
        :param namespace: for the topics of this one, such as ``public/default``, where it has plugins of another family
            than the domain has elsewhere.
        :param timeout_ms: it is aborted after this, unless it ended before; default ``transactions.timeout_ms``.
        :param principal: who alone may add to it and end it; default: whoever knows its id.
        :param outlives_client: leave it open when this client is closed or its process dies, until its timeout, for
            ``Client.commit`` or ``Client.abort`` by its id; otherwise it is aborted as soon as that is noticed.
        """
        bounds = self.host.config.transactions
        timeout = bounds.timeout_ms if timeout_ms is None else timeout_ms
        whole_number(timeout, "timeout_ms", 1, bounds.timeout_ms_max)
        if domain not in TRANSACTION_DOMAINS:
            raise InvalidInput(
                f"{excerpt(domain)} is no domain of transactions; there are {' and '.join(TRANSACTION_DOMAINS)}"
            )
        if namespace != "":
            check_namespace(namespace)
        check_principal(principal)
        place = (domain, namespace)
        return Transaction(self.host, self._retrying, Begin(timeout, principal), place, outlives_client)

    def join(self, txn_id: TxnID | str, *, principal: str = "") -> JoinedTransaction:
        """
        Take part in another process's transaction under a random branch; ending it is left to that process.

        :param txn_id: its id, or ``str`` of it, as it travels between processes.
        :param principal: the one that it was begun with; with another one sends and acknowledgments are refused.
        """
        joined = parse_txn_id(txn_id)
        check_principal(principal)
        number = self.host.environment.random_bits(BRANCH_BITS) or 1
        return JoinedTransaction(Branch(joined, number), principal)

    async def outcome(self, txn_id: TxnID | str) -> State:
        """
        Return OPEN, COMMITTED or ABORTED; a commit or abort of this client that was cancelled is waited for.

        :raises TransactionNotFound: it never began, or ended longer ago than outcomes are kept.
        :raises TransactionDomainMismatch: no plugin of its family is installed, as for everything that takes an id.
        """
        asked = parse_txn_id(txn_id)
        await self.host.steps.abandoned_ended((asked,))
        coordinator = await self.host.coordinator_for(asked)
        return (await self._retrying.run(lambda: coordinator.describe(asked))).state

    async def commit(
        self, txn_id: TxnID | str, branches: Iterable[int] = (), *, principal: str = "", operator: bool = False
    ) -> None:
        """
        Commit a transaction by its id, its branch 0 and ``branches`` counting: after a restart, or for an operator.

        Only whoever knows that everything was confirmed may do so. Raises as ``Transaction.commit`` does. Cancelled: it
        is decided all the same.

        :param operator: whoever owns it; for a tool that has asked who its user is.
        :raises NotTransactionOwner: it belongs to another principal; nothing was changed.
        """
        check_principal(principal)
        counting = frozenset(whole_number(one, "a branch", 0) for one in (0, *branches))
        await self._end(End(parse_txn_id(txn_id), Action.COMMIT, principal, counting, operator))

    async def abort(self, txn_id: TxnID | str, *, principal: str = "", operator: bool = False) -> None:
        """Abort a transaction by its id; raises as ``Transaction.abort`` does, and takes who ends it as ``commit``."""
        check_principal(principal)
        await self._end(End(parse_txn_id(txn_id), Action.ABORT, principal, operator=operator))

    async def settle(self, txn_id: TxnID | str) -> int:
        """
        Make the outcome of a transaction that has ended take effect everywhere, instead of leaving it to the sweeps.

        Returns how many operations are left: they could not be settled now, and the sweeps try them again.

        :raises InvalidTransactionState: it is open.
        :raises TransactionNotFound: it never began, or ended longer ago than outcomes are kept.
        """
        ended = parse_txn_id(txn_id)
        await self.host.steps.abandoned_ended((ended,))
        coordinator = await self.host.coordinator_for(ended)
        await self._retrying.run(lambda: coordinator.describe(ended))
        return (await self._retrying.run(lambda: coordinator.settle(ended))).left

    async def find_hanging(
        self, age_ms_min: int = 60_000, *, after: HangingTransaction | None = None, transactions_max: int = 100
    ) -> tuple[HangingTransaction, ...]:
        """
        Return transactions that somebody should look at: nothing is changed.

        Those that have been open for so long, with whether the process that began them is alive; and those that ended
        so long ago and have not taken effect everywhere, with where that is: nobody sweeps, or a participant cannot be
        settled. Of each family the open ones first, the one that is due first at the top.

        :param after: the last one of the page before; fewer than ``transactions_max`` are the last page.
        :raises TransactionNotFound: ``after`` has been forgotten since; begin anew.
        """
        whole_number(age_ms_min, "age_ms_min", 0, TIME_MS_MAX)
        whole_number(transactions_max, "transactions_max", 1)
        return await self._retrying.run(lambda: self.host.hanging.find(age_ms_min, after, transactions_max))

    async def _end(self, end: End) -> None:
        coordinator = await self.host.coordinator_for(end.txn_id)

        async def decide() -> None:
            await self._retrying.run(lambda: coordinator.end(end))
            self._host.settle_soon(end.txn_id)

        await self.host.steps.finish(decide, (end.txn_id,))


def parse_txn_id(given: TxnID | str) -> TxnID:
    """
    Return the id that was given as such, or as the text that ``str`` makes of it.

    :raises InvalidInput: it is not such a text.
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
    """Refuse what cannot be a principal; an empty one is none."""
    if given != "":
        check_new_name(given, "principal")
